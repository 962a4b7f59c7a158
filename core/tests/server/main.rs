//! The HTTP API, tried over a loopback socket with a scripted engine.

#![allow(clippy::format_push_string, clippy::unwrap_used, clippy::panic)]

mod beams;
mod chat;
mod completions;
mod errors;
mod lifecycle;
mod metrics;
mod streaming;
mod support;
mod translate;
