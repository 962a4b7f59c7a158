//! Checkpoint files as data: what tensors a safetensors or GGUF file holds, where they lie, and what their bytes mean.
//!
//! Everything here works on borrowed bytes; opening and mapping files is the caller's. Every input is treated as
//! hostile: whatever the bytes are, the parsers return an error or a [`Headers`] whose tensors lie inside the file and
//! do not overlap, they never panic, and they allocate no more than a small multiple of the bytes they were given.
//!
//! Shapes are in PyTorch order, out-features first, for both formats.

pub mod dequant;
mod dtype;
mod error;
mod finite;
pub mod gguf;
mod headers;
pub mod index;
mod name_index;
mod nearest;
pub mod safetensors;
pub mod write;

pub use dtype::Dtype;
pub use error::CheckpointError;
pub use finite::check_finite;
pub use headers::{Headers, Metadata, TensorInfo};
