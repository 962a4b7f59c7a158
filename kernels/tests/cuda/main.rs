//! Promises of the CUDA kernels: each is compared with the CPU kernel on the same (rounded) inputs, over ragged shapes
//! and hard values, into outputs that are poisoned first and watched behind their end.
//!
//! The binary stands alone: it can be carried to a machine with a GPU. Without one, every test that needs it is
//! skipped with a line on stderr; `METRALE_REQUIRE_GPU=1` makes that a failure.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod attention;
#[allow(dead_code)]
#[path = "../cpu/quantized.rs"]
mod blocks;
mod device;
mod elementwise;
mod embedding;
mod graph;
mod linear;
mod logits;
mod moe;
mod norm;
mod quantized;
mod recurrent;
mod rope;
mod support;
