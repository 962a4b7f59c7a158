//! Finding, checking, opening and choosing plugins.
