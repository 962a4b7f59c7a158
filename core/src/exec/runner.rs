//! The forward pass: one step of a model on the CPU device.

use metrale_kernels::cpu::Cpu;
use metrale_kernels::cpu::attention::Sequence;
use smallvec::SmallVec;

use super::{Batch, Logits, RunnerLimits, StepRunner};
use crate::device::cpu::{CpuPlan, LaunchError, Numerics, States, StepContext};
use crate::error::EngineError;

/// A loaded model: the plans of its entry points, its states, and the device that runs them.
#[derive(Debug)]
pub struct ModelRunner {
    pub(crate) cpu: Cpu,
    pub(crate) text: CpuPlan,
    pub(crate) lm_head: CpuPlan,
    pub(crate) states: States,
    pub(crate) numerics: Numerics,
    pub(crate) limits: RunnerLimits,
    pub(crate) rows: RowMetadata,
}

/// What the kernels need to know about each row; buffers are reused between steps.
#[derive(Debug, Default)]
pub(crate) struct RowMetadata {
    positions: Vec<u32>,
    slots: Vec<u32>,
    block_tables: Vec<u32>,
}

impl StepRunner for ModelRunner {
    /// Rows go through the text plan together; the rows whose logits are wanted then go through the head.
    fn step(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), EngineError> {
        self.check(batch)?;
        self.rows.fill(batch, self.limits.block_size);
        let rows = batch.num_tokens();

        let sequences = self.rows.sequences(batch);
        let context = StepContext {
            rows,
            token_ids: &batch.token_ids,
            positions: &self.rows.positions,
            slots: &self.rows.slots,
            sequences: &sequences,
        };
        self.text.run(&self.cpu, &mut self.states, self.numerics, &context).map_err(device_error)?;

        let vocab_size = self.limits.vocab_size;
        logits.vocab_size = vocab_size;
        logits.data.resize(batch.logits_rows.len() * vocab_size, 0.0);
        let hidden = self.text.output("final_hidden", rows).unwrap_or(&[]);
        let width = hidden.len() / rows;
        for (wanted, out) in batch
            .logits_rows
            .chunks(self.lm_head.max_rows())
            .zip(logits.data.chunks_mut(self.lm_head.max_rows() * vocab_size))
        {
            let input = self.lm_head.input_mut("hidden", wanted.len()).unwrap_or(&mut []);
            for (&row, input) in wanted.iter().zip(input.chunks_exact_mut(width)) {
                input.copy_from_slice(&hidden[row * width..(row + 1) * width]);
            }
            let context = StepContext {
                rows: wanted.len(),
                token_ids: &[],
                positions: &[],
                slots: &[],
                sequences: &[],
            };
            self.lm_head.run(&self.cpu, &mut self.states, self.numerics, &context).map_err(device_error)?;
            out.copy_from_slice(self.lm_head.output("logits", wanted.len()).unwrap_or(&[]));
        }
        Ok(())
    }

    fn limits(&self) -> RunnerLimits {
        self.limits
    }
}

impl ModelRunner {
    /// Bytes of weights that a step reads, whatever its number of rows.
    #[must_use]
    pub fn weight_bytes_per_step(&self) -> usize {
        self.text.weight_bytes_per_step() + self.lm_head.weight_bytes_per_step()
    }

    /// Rows of an output of the text plan after a step; with [`Taps::Keep`](crate::lower::Taps) also `hidden.<layer>`.
    #[must_use]
    pub fn output(&self, name: &str, rows: usize) -> Option<&[f32]> {
        self.text.output(name, rows)
    }

    /// The instruction set that the kernels use.
    #[must_use]
    pub fn isa_name(&self) -> &'static str {
        self.cpu.isa().name()
    }

    fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        let rows = batch.num_tokens();
        let owned: usize = batch.seqs.iter().map(|s| s.num_tokens).sum();
        let covered = |s: &super::BatchSeq| {
            s.block_table.len() * self.limits.block_size >= s.num_computed + s.num_tokens
        };
        if rows == 0
            || rows != owned
            || rows > self.limits.max_num_batched_tokens
            || !batch.seqs.iter().all(covered)
        {
            return Err(EngineError::Internal(format!(
                "a step of {rows} rows, {owned} of them owned by sequences, at most {} allowed",
                self.limits.max_num_batched_tokens
            )));
        }
        Ok(())
    }
}

fn device_error(error: LaunchError) -> EngineError {
    EngineError::Device { op: format!("the op at {}", error.source_line), message: error.message }
}

impl RowMetadata {
    fn fill(&mut self, batch: &Batch, block_size: usize) {
        self.positions.clear();
        self.slots.clear();
        self.block_tables.clear();
        for seq in &batch.seqs {
            for position in seq.num_computed..seq.num_computed + seq.num_tokens {
                let block = seq.block_table[position / block_size].0 as usize;
                self.positions.push(position as u32);
                self.slots.push((block * block_size + position % block_size) as u32);
            }
            self.block_tables.extend(seq.block_table.iter().map(|b| b.0));
        }
    }

    fn sequences<'a>(&'a self, batch: &Batch) -> SmallVec<[Sequence<'a>; 32]> {
        let mut tables = self.block_tables.as_slice();
        batch
            .seqs
            .iter()
            .map(|seq| {
                let (block_table, rest) = tables.split_at(seq.block_table.len());
                tables = rest;
                Sequence {
                    num_tokens: seq.num_tokens,
                    context_len: seq.num_computed + seq.num_tokens,
                    block_table,
                }
            })
            .collect()
    }
}
