//! A golden model on the CPU device, driven step by step.

use anyhow::{Context, Result};
use metrale_core::device::cpu::Numerics;
use metrale_core::exec::{Batch, BatchSeq, BlockId, Logits, ModelRunner, StateSlot, StepRunner};
use metrale_core::factory::{RunnerOptions, build_runner, open_attrs};
use metrale_core::lower::Taps;
use metrale_core::weights::ModelSource;
use metrale_kernels::cpu::Isa;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_plugin_api::abi::PluginModule_Ref;
use metrale_reference::Tensor;

use crate::golden::Golden;

const BLOCK_SIZE: usize = 16;
/// Sequences of these tests; each has pages of its own.
const MAX_SEQS: usize = 4;

/// A loaded model and the logits of its last step.
#[derive(Debug)]
pub struct CpuModel {
    /// Runs steps.
    pub runner: ModelRunner,
    logits: Logits,
    max_len: usize,
}

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Which sequence, from 0 to 3.
    pub sequence: usize,
    /// Its tokens that were computed before.
    pub num_computed: usize,
    /// The rows.
    pub token_ids: &'a [i64],
}

impl CpuModel {
    /// Opens a golden model in f32, or with a bf16 KV cache.
    ///
    /// # Errors
    /// The model cannot be built.
    pub fn open(plugin: PluginModule_Ref, golden: &Golden, kv_dtype: KvDtype) -> Result<Self> {
        let directory = golden.model_directory()?;
        let source = ModelSource::open(directory.path())?;
        Self::build(plugin, &source, golden.token_ids()?.len(), kv_dtype, Activations::F32)
    }

    /// Opens any model for sequences of up to `max_len` tokens.
    ///
    /// # Errors
    /// The model cannot be built.
    pub fn build(
        plugin: PluginModule_Ref,
        source: &ModelSource,
        max_len: usize,
        kv_dtype: KvDtype,
        activations: Activations,
    ) -> Result<Self> {
        let options = RunnerOptions {
            threads: 2,
            isa: Isa::detect(),
            numerics: Numerics { activations },
            kv_dtype,
            max_model_len: Some(max_len),
            max_num_seqs: MAX_SEQS,
            max_num_batched_tokens: 2 * max_len,
            block_size: BLOCK_SIZE,
            kv_cache_bytes: None,
            strict_weights: true,
            ignored_tensors: Vec::new(),
            taps: Taps::Keep,
        };
        let built = build_runner(plugin, &open_attrs(source, Some(max_len)), Some(source), &options)?;
        Ok(Self { runner: built.runner, logits: Logits::default(), max_len })
    }

    /// Runs the chunks as one step; gives the logits of every row, `[rows, vocab]`.
    ///
    /// # Errors
    /// The step fails.
    pub fn step(&mut self, chunks: &[Chunk<'_>]) -> Result<Tensor> {
        let pages = self.max_len.div_ceil(BLOCK_SIZE) as u32;
        let seq = |chunk: &Chunk<'_>| {
            let len = chunk.num_computed + chunk.token_ids.len();
            // Pages in an order of their own, so that a table that is ignored is noticed.
            let page = |i: u32| BlockId(1 + chunk.sequence as u32 * pages + (i * 3 + 1) % pages);
            let used = len.div_ceil(BLOCK_SIZE) as u32;
            let block_table = if pages.is_multiple_of(3) {
                (0..used).map(|i| BlockId(1 + chunk.sequence as u32 * pages + pages - 1 - i)).collect()
            } else {
                (0..used).map(page).collect()
            };
            BatchSeq {
                num_tokens: chunk.token_ids.len(),
                num_computed: chunk.num_computed,
                block_table,
                state_slot: StateSlot(chunk.sequence as u32),
            }
        };
        let token_ids: Vec<u32> =
            chunks.iter().flat_map(|c| c.token_ids).map(|&t| u32::try_from(t)).collect::<Result<_, _>>()?;
        let rows = token_ids.len();
        let batch =
            Batch { token_ids, seqs: chunks.iter().map(seq).collect(), logits_rows: (0..rows).collect() };
        self.runner.step(&batch, &mut self.logits)?;
        Ok(Tensor::new(&[rows, self.logits.vocab_size], self.logits.data.clone())?)
    }

    /// The value `hidden.<layer>` or `final_hidden` of the last step, `[rows, width]`.
    ///
    /// # Errors
    /// There is no such value.
    pub fn value(&self, name: &str, rows: usize) -> Result<Tensor> {
        let data = self.runner.output(name, rows).with_context(|| format!("no value {name}"))?;
        Ok(Tensor::new(&[rows, data.len() / rows], data.to_vec())?)
    }

    /// All tokens of one sequence, in chunks of the given size; logits of every row.
    ///
    /// # Errors
    /// A step fails.
    pub fn in_chunks(&mut self, token_ids: &[i64], sizes: &[usize]) -> Result<Tensor> {
        let (mut data, mut start, mut width) = (Vec::new(), 0, 0);
        for size in sizes {
            let chunk =
                Chunk { sequence: 1, num_computed: start, token_ids: &token_ids[start..start + size] };
            let logits = self.step(&[chunk])?;
            data.extend_from_slice(logits.data());
            width = logits.width();
            start += size;
        }
        Ok(Tensor::new(&[start, width], data)?)
    }
}
