//! What the end-to-end tests share: golden models and how to read them.

pub mod allocations;
pub mod cpu;
pub mod cpu_promises;
pub mod cpu_translation;
pub mod cuda_promises;
pub mod damaged;
pub mod differences;
pub mod engine;
pub mod golden;
pub mod gpu;
pub mod interpreter;
pub mod model;
pub mod npy;
pub mod own_tables;
pub mod quantized;
pub mod stored;
pub mod trained;
pub mod trained_promises;
pub mod trained_translation;

use std::path::PathBuf;

/// Where golden and trained models lie: the directory of this package, or the one that the environment variable
/// `METRALE_TEST_DATA` names, for test programs that run on another machine.
#[must_use]
pub fn data_directory() -> PathBuf {
    std::env::var_os("METRALE_TEST_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}
