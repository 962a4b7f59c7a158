//! The multi-token-prediction head.

use super::head::compute_logits;
use super::runner::device_error;
use super::{Batch, Logits, ModelRunner, Vision};
use crate::device::cpu::StepContext;
use crate::error::EngineError;

impl ModelRunner {
    /// MTP depths that were loaded.
    #[must_use]
    pub fn num_mtp_layers(&self) -> usize {
        self.mtp.len()
    }

    /// Runs one MTP depth over slots: row i holds a hidden state (`hidden: [rows, hidden_size]`) and, in `batch`, the
    /// token after it. `num_computed` counts the slots that this depth has seen. Leaves the wanted rows' logits.
    ///
    /// # Errors
    /// There is no such depth, the rows do not fit, or a kernel refuses.
    pub fn mtp(
        &mut self,
        depth: usize,
        batch: &Batch,
        hidden: &[f32],
        logits: &mut Logits,
    ) -> Result<(), EngineError> {
        self.check(batch)?;
        self.rows.fill(&batch.seqs, self.limits.block_size);
        if let Some(vision) = &mut self.vision {
            vision.place(&batch.seqs);
        }
        let (rows, loaded) = (batch.num_tokens(), self.mtp.len());
        let plan = self.mtp.get_mut(depth).ok_or_else(|| {
            EngineError::Internal(format!("MTP depth {depth} of a model with {loaded} loaded"))
        })?;
        let input = plan.input_mut("hidden", rows).unwrap_or(&mut []);
        if input.len() != hidden.len() {
            return Err(EngineError::Internal(format!(
                "{} hidden values for {rows} rows of an MTP head that takes {}",
                hidden.len(),
                input.len()
            )));
        }
        input.copy_from_slice(hidden);
        let context = StepContext {
            rows,
            token_ids: &batch.token_ids,
            positions: &self.rows.positions,
            slots: &self.rows.slots,
            sequences: &self.rows.sequences(),
            state_slots: &self.rows.state_slots,
            images: self.vision.as_ref().map(Vision::context).unwrap_or_default(),
            ..StepContext::default()
        };
        let device = &mut self.device;
        plan.run(&device.cpu, &mut device.states, device.numerics, &context).map_err(device_error)?;
        logits.vocab_size = self.limits.vocab_size;
        let hidden = plan.output("head_in", rows).unwrap_or(&[]);
        compute_logits(&mut self.lm_head, device, (hidden, hidden.len() / rows), &batch.logits_rows, logits)
    }

    /// Rows of an output of an MTP depth after [`ModelRunner::mtp`]: `recycle` is what the next depth is fed with.
    #[must_use]
    pub fn mtp_output(&self, depth: usize, name: &str, rows: usize) -> Option<&[f32]> {
        self.mtp.get(depth)?.output(name, rows)
    }
}
