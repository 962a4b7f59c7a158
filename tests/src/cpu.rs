//! A golden model on the CPU device, driven step by step.

pub use crate::model::{Chunk, DeviceModel as CpuModel, Setup, options};
