//! CPU kernels. Activations are f32, row-major `[T, width]`; T (the number of rows) follows from the slice lengths.
//!
//! A [`Cpu`] is the thread pool plus the instruction-set level; every launcher takes it first. Launchers:
//!
//! | module | launchers |
//! |---|---|
//! | [`linear`] | [`linear::linear`]: y = x Wᵀ for several weights that share x, with bias, residual and gated epilogues; [`linear::head_linear`]: a weight for every head |
//! | [`embedding`] | [`embedding::gather`]: rows of a weight of any format |
//! | [`norm`] | [`norm::rms_norm`], [`norm::add_rms_norm`], [`norm::layer_norm`], [`norm::l2_norm`], [`norm::softmax`] |
//! | [`elementwise`] | [`elementwise::unary`], [`elementwise::binary`], [`elementwise::scale`], [`elementwise::gated`], [`elementwise::mul_rows`], [`elementwise::copy_columns`] |
//! | [`rope`] | [`rope::fill_tables`], [`rope::fill_sectioned_tables`], [`rope::rotate`] |
//! | [`sinusoid`] | [`sinusoid::sinusoid`]: fixed position vectors |
//! | [`kv_cache`] | [`kv_cache::KvCache`] pages, [`kv_cache::write`] |
//! //! | [`attention`] | [`attention::paged`] over a `KvCache`, [`attention::paged_selected`] over chosen positions, [`attention::index`] chooses them |
//! | [`conv`] | [`conv::causal_conv1d`] with per-slot state |
//! | [`delta_rule`] | [`delta_rule::gated_delta_rule`] with per-slot state |
//! | [`moe`] | [`moe::route`], [`moe::expert_linear`], [`moe::combine`] |
//! | [`bandwidth`] | [`bandwidth::read_bandwidth`]: the memory's read rate |
//! | [`logits`] | [`logits::argmax`], [`logits::top_k`], [`logits::log_softmax_at`] |
//!
//! **Batch invariance.** An output row depends on its own inputs only: not on T, the other rows, the number of
//! threads or tiling. Every reduction has one order per (level, format, mode).
//!
//! **Non-finite values** propagate: a NaN or an infinity in an input row shows up as NaN or infinity in the outputs
//! that use it, never as a finite number.

pub mod attention;
pub mod bandwidth;
pub mod conv;
pub mod delta_rule;
pub mod elementwise;
pub mod embedding;
mod isa;
pub mod kv_cache;
pub mod linear;
pub mod logits;
mod math;
pub mod moe;
pub mod norm;
pub mod pool;
pub mod reduce;
pub mod rope;
mod scratch;
mod sequence;
mod shared;
mod simd;
pub mod sinusoid;
mod slot_state;
pub mod weight;

pub use isa::Isa;
pub use pool::ThreadPool;
pub use weight::{Bytes, Format, Weight};

use crate::error::{KernelError, Result};
use linear::QuantizedRows;
use parking_lot::Mutex;

/// Where kernels run: a thread pool and an instruction-set level.
#[derive(Debug)]
pub struct Cpu {
    pool: ThreadPool,
    isa: Isa,
    quantized_rows: Recycled<QuantizedRows>,
    attention_workspaces: Recycled<attention::Workspace>,
}

/// Buffers of finished calls, for the next ones.
#[derive(Debug, Default)]
struct Recycled<T>(Mutex<Vec<T>>);

impl<T: Default> Recycled<T> {
    fn with(&self, f: impl FnOnce(&mut T)) {
        let mut buffer = self.0.lock().pop().unwrap_or_default();
        f(&mut buffer);
        self.0.lock().push(buffer);
    }
}

impl Cpu {
    /// `num_threads` workers (the calling thread is one of them) at the best level of this processor.
    #[must_use]
    pub fn new(num_threads: usize) -> Self {
        Self::at(num_threads, Isa::detect())
    }

    /// As [`new`](Self::new), at a given level.
    ///
    /// # Errors
    /// The processor does not support the level.
    pub fn with_isa(num_threads: usize, isa: Isa) -> Result<Self> {
        if !isa.is_supported() {
            return Err(KernelError::Isa { isa: isa.name() });
        }
        Ok(Self::at(num_threads, isa))
    }

    fn at(num_threads: usize, isa: Isa) -> Self {
        Self {
            pool: ThreadPool::new(num_threads),
            isa,
            quantized_rows: Recycled::default(),
            attention_workspaces: Recycled::default(),
        }
    }

    /// The level that kernels use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The thread pool, for work of the caller's own.
    #[must_use]
    pub fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// Runs a kernel body at this level.
    #[inline]
    pub(crate) fn launch<K: isa::Kernel>(&self, kernel: K) {
        // SAFETY: the constructors only accept supported levels.
        unsafe { self.isa.run(kernel) }
    }

    /// Calls `f` with a recycled buffer for activations in int8.
    pub(crate) fn with_quantized_rows(&self, f: impl FnOnce(&mut QuantizedRows)) {
        self.quantized_rows.with(f);
    }

    /// Calls `f` with a recycled workspace for attention.
    pub(crate) fn with_attention_workspace(&self, f: impl FnOnce(&mut attention::Workspace)) {
        self.attention_workspaces.with(f);
    }
}
