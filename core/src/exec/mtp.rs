//! The multi-token-prediction head.

use super::runner::{compute_logits, device_error};
use super::{Batch, Logits, ModelRunner, Vision};
use crate::device::{Entry, StepContext};
use crate::error::EngineError;

impl ModelRunner {
    /// MTP depths that were loaded.
    #[must_use]
    pub fn num_mtp_layers(&self) -> usize {
        self.device.num_mtp_layers()
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
        let rows = batch.num_tokens();
        self.device.write_input((Entry::Mtp(depth), "hidden"), rows, hidden).map_err(device_error)?;
        let context = StepContext {
            rows,
            token_ids: &batch.token_ids,
            positions: &self.rows.positions,
            slots: &self.rows.slots,
            sequences: &self.rows.sequences(),
            state_slots: &self.rows.state_slots,
            images: self.vision.as_ref().map(Vision::context).unwrap_or_default(),
            logits_rows: &batch.logits_rows,
            ..StepContext::default()
        };
        self.device.run(Entry::Mtp(depth), &context).map_err(device_error)?;
        logits.vocab_size = self.limits.vocab_size;
        compute_logits(&mut *self.device, (Entry::Mtp(depth), "head_in"), &batch.logits_rows, logits)
    }

    /// Rows of an output of an MTP depth after [`ModelRunner::mtp`]: `recycle` is what the next depth is fed with.
    ///
    /// # Errors
    /// The device failed.
    pub fn mtp_output(&self, depth: usize, name: &str, rows: usize) -> Result<Option<Vec<f32>>, EngineError> {
        self.device.read_output(Entry::Mtp(depth), name, rows).map_err(device_error)
    }
}
