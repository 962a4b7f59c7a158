//! Compute kernels of the engine behind safe launchers.
//!
//! [`cpu`] holds the CPU kernels; its module documentation lists every launcher. A launcher checks all shapes,
//! lengths and indices first and returns a [`KernelError`] without writing anything if one is wrong. [`cuda`] (feature
//! `cuda`) mirrors it for NVIDIA devices. Nothing here knows about models or graphs.

#[allow(unsafe_code, clippy::multiple_unsafe_ops_per_block)]
pub mod cpu;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, clippy::multiple_unsafe_ops_per_block)]
pub mod cuda;
mod error;

pub use error::{KernelError, Result};
