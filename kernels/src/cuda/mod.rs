//! CUDA kernels behind the launchers' checks. Activations are f32 or bf16 ([`Element`]), row-major `[T, width]`;
//! arithmetic is f32, or products of bf16 or int8 with f32 sums. Norm weights, biases, tables and recurrent states are f32.
//!
//! A [`Cuda`] is one device with one stream; every launcher takes it first and returns before the device is done.
//! Buffers belong to a device; views of them carry lengths, which launchers check. Contents that kernels use as
//! indices are checked on the host when they are uploaded: [`Indices`], [`Rows`], [`Slots`], all those of a step at once
//! with [`Lists`]. In steady use launchers
//! allocate no device memory, and their work can be recorded as a [`Graph`].
//!
//! | module | launchers |
//! |---|---|
//! | [`linear`] | [`linear::linear`]: y = x Wᵀ with bias and residual |
//! | [`embedding`] | [`embedding::gather`], [`embedding::gather_rows`] |
//! | [`sinusoid`] | [`sinusoid::sinusoid`] |
//! | [`norm`] | [`norm::rms_norm`], [`norm::add_rms_norm`], [`norm::layer_norm`], [`norm::l2_norm`] |
//! | [`elementwise`] | [`elementwise::unary`], [`elementwise::binary`], [`elementwise::scale`], [`elementwise::gated`], [`elementwise::mul_rows`], [`elementwise::copy_columns`], … |
//! | [`rope`] | [`rope::fill_tables`], [`rope::fill_sectioned_tables`], [`rope::rotate`] |
//! | [`qkv`] | [`qkv::write`]: head norms, rotation and cache write of merged projections |
//! | [`kv_cache`] | [`kv_cache::KvCache`] pages, [`kv_cache::write`] |
//! | [`attention`] | [`attention::paged`] over a `KvCache` |
//! | [`conv`] | [`conv::causal_conv1d`] with per-slot state |
//! | [`delta_rule`] | [`delta_rule::gated_delta_rule`] with per-slot state |
//! | [`moe`] | [`moe::route`], [`moe::expert_linear`], [`moe::combine`] |
//! | [`logits`] | [`logits::argmax`], [`logits::top_k`], [`logits::log_softmax_at`] |
//!
//! **Batch invariance.** Norms, elementwise operations, rope, recurrences, attention at a given split length and logits
//! compute a row the same way in every batch. [`linear`] does so within each of its kernels, which it chooses by the
//! number of rows.
//!
//! Without a driver, a device or kernels in the build, [`Cuda::new`] and [`devices`] return an error that says which.

pub mod attention;
pub mod conv;
mod cublas;
pub mod delta_rule;
mod device;
mod driver;
mod element;
pub mod elementwise;
pub mod embedding;
mod graph;
mod indices;
pub mod kv_cache;
mod launch;
pub mod linear;
mod lists;
pub mod logits;
mod memory;
mod module;
pub mod moe;
pub mod norm;
mod planes;
pub mod qkv;
mod quantized;
pub mod rope;
pub mod sinusoid;
mod slots;
mod staging;
mod timer;
mod weight;

pub use attention::Rows;
pub use device::{Cuda, DeviceInfo, devices, usable};
pub use element::Element;
pub use graph::Graph;
pub use indices::Indices;
pub use lists::Lists;
pub use memory::{Buffer, Stored, View, ViewMut};
pub use module::{image_archs, image_bytes};
pub use slots::Slots;
pub use staging::Staging;
pub use timer::Timer;
pub use weight::Weight;
