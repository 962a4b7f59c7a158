//! What the end-to-end tests share: golden models and how to read them.

pub mod allocations;
pub mod cpu;
pub mod cpu_promises;
pub mod cpu_translation;
pub mod differences;
pub mod engine;
pub mod golden;
pub mod interpreter;
pub mod model;
pub mod npy;
pub mod quantized;
pub mod trained;
