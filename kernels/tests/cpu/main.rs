//! Promises of the CPU kernels, checked at every instruction-set level that the machine has.
//!
//! The binary stands alone: it can be carried to another machine to check the levels there. Levels that the
//! processor lacks are skipped with a line on stderr.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod attention;
mod elementwise;
mod linear;
mod logits;
mod moe;
mod norm;
mod pool;
mod quantized;
mod recurrent;
mod rope;
mod support;
mod weight;
