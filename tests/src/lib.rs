//! What the end-to-end tests share: golden models and how to read them.

pub mod cpu;
pub mod cpu_promises;
pub mod differences;
pub mod golden;
pub mod interpreter;
pub mod npy;
pub mod quantized;
