//! Crate.

pub mod checkpoint;
