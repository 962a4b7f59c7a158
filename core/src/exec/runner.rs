//! The forward pass: one step of a model on its device.

use super::{
    Batch, BatchSeq, Chain, Drafter, Logits, PageCopies, Rows, RunnerLimits, StateSnapshots, StepRunner,
    Vision,
};
use crate::device::{Device, Entry, LaunchError, StepContext};
use crate::error::EngineError;

/// A loaded model on a device.
#[derive(Debug)]
pub struct ModelRunner {
    pub(crate) device: Box<dyn Device>,
    pub(crate) vision: Option<Vision>,
    pub(crate) limits: RunnerLimits,
    /// Rows that the encoder takes at once; nothing for a model without one.
    pub(crate) encoder_rows: Option<usize>,
    /// Slots for recurrent state besides those of running sequences.
    pub(crate) num_snapshots: usize,
    pub(crate) rows: Rows,
    /// Rows of the last step.
    pub(crate) num_rows: usize,
    pub(crate) chain: Chain,
    /// The rows' sources, or the sources being encoded.
    pub(crate) sources: Rows,
    pub(crate) source_ids: Vec<u32>,
}

/// What the head is fed with, by entry point.
pub(super) const TEXT_OUTPUT: (Entry, &str) = (Entry::Text, "final_hidden");

impl StepRunner for ModelRunner {
    /// New sequences get a clean state and their source is encoded. Then rows go through the text plan together, and the
    /// rows whose logits are wanted through the head.
    fn step(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), EngineError> {
        self.forward(batch)?;
        logits.vocab_size = self.limits.vocab_size;
        compute_logits(&mut *self.device, TEXT_OUTPUT, &batch.logits_rows, logits)
    }

    fn limits(&self) -> RunnerLimits {
        self.limits
    }

    fn state_snapshots(&mut self) -> Option<&mut dyn StateSnapshots> {
        (self.limits.has_recurrent_state && self.num_snapshots > 0).then_some(self)
    }

    fn page_copies(&mut self) -> Option<&mut dyn PageCopies> {
        Some(self)
    }

    fn drafter(&mut self) -> Option<&mut dyn Drafter> {
        (self.limits.max_num_drafts > 0 && self.num_mtp_layers() > 0).then_some(self)
    }
}

impl ModelRunner {
    /// Everything before the head.
    pub(super) fn forward(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.check(batch)?;
        self.start_sequences(batch)?;
        self.encode(batch)?;
        if let Some(vision) = &mut self.vision {
            vision.see(&mut *self.device, batch)?;
        }

        self.rows.fill(&batch.seqs, self.limits.block_size);
        self.sources.fill_sources(&batch.seqs);
        self.num_rows = batch.num_tokens();
        let context = StepContext {
            rows: self.num_rows,
            token_ids: &batch.token_ids,
            positions: &self.rows.positions,
            slots: &self.rows.slots,
            sequences: &self.rows.sequences(),
            sources: &self.sources.sequences(),
            state_slots: &self.rows.state_slots,
            images: self.vision.as_ref().map(Vision::context).unwrap_or_default(),
            draft_rows: &self.rows.draft_rows,
            logits_rows: &batch.logits_rows,
        };
        self.device.run(Entry::Text, &context).map_err(device_error)
    }

    /// Bytes of weights that a step of one row reads.
    #[must_use]
    pub fn weight_bytes_per_step(&self) -> usize {
        self.device.weight_bytes_per_step()
    }

    /// Rows of an output of the text plan after a step; with [`Taps::Keep`](crate::lower::Taps) also `hidden.<layer>`.
    ///
    /// # Errors
    /// The device failed.
    pub fn output(&self, name: &str, rows: usize) -> Result<Option<Vec<f32>>, EngineError> {
        self.device.read_output(Entry::Text, name, rows).map_err(device_error)
    }

    /// What the vision tower made of the images of the last step, `[image rows, width]`, row after row.
    #[must_use]
    pub fn image_rows(&self) -> Option<&[f32]> {
        self.vision.as_ref().map(|vision| vision.context().rows)
    }

    /// The device, and how it computes.
    #[must_use]
    pub fn device_description(&self) -> String {
        self.device.describe()
    }

    /// Parts of steps that the device recorded so far.
    #[must_use]
    pub fn num_recorded(&self) -> usize {
        self.device.num_recorded()
    }

    /// A recurrent state starts at zero.
    fn start_sequences(&mut self, batch: &Batch) -> Result<(), EngineError> {
        if self.limits.has_recurrent_state {
            for seq in batch.seqs.iter().filter(|s| s.num_computed == 0) {
                self.device.clear_slot(seq.state_slot.0 as usize).map_err(device_error)?;
            }
        }
        Ok(())
    }

    /// Refuses a batch that breaks what the kernels rely on.
    pub(super) fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        let rows = batch.num_tokens();
        let owned: usize = batch.seqs.iter().map(|s| s.num_tokens).sum();
        if rows == 0 || rows != owned || rows > self.limits.max_num_batched_tokens {
            return Err(EngineError::Internal(format!(
                "a step of {rows} rows, {owned} of them owned by sequences, at most {} allowed",
                self.limits.max_num_batched_tokens
            )));
        }
        batch.seqs.iter().try_for_each(|seq| self.check_seq(seq).map_err(EngineError::Internal))
    }

    fn check_seq(&self, seq: &BatchSeq) -> Result<(), String> {
        let limits = &self.limits;
        let len = seq.num_computed + seq.num_tokens;
        if seq.block_table.len() * limits.block_size < len {
            return Err(format!("{} pages for {len} tokens of a sequence", seq.block_table.len()));
        }
        if limits.has_recurrent_state && seq.state_slot.0 as usize >= limits.max_num_seqs {
            return Err(format!("state slot {} of {}", seq.state_slot.0, limits.max_num_seqs));
        }
        if seq.images.is_some() && self.vision.is_none() {
            return Err("images for a model without a vision tower".to_owned());
        }
        let most = limits.max_num_drafts;
        if seq.num_drafts >= seq.num_tokens || seq.num_drafts.max(seq.num_accepted) > most {
            return Err(format!(
                "{} of {} rows are drafts, and {} of the last step were accepted; at most {most} can be",
                seq.num_drafts, seq.num_tokens, seq.num_accepted
            ));
        }
        match (&seq.source, &limits.source) {
            (None, None) => Ok(()),
            (Some(source), Some(allowed)) => {
                let (len, pages) = (source.token_ids.len(), source.block_table.len());
                let fits = (1..=allowed.max_len).contains(&len) && pages * limits.block_size >= len;
                if fits { Ok(()) } else { Err(format!("a source of {len} tokens in {pages} pages")) }
            }
            (Some(_), None) => Err("a source for a model without an encoder".to_owned()),
            (None, Some(_)) => Err("a sequence without a source for a model with an encoder".to_owned()),
        }
    }
}

/// Logits of the wanted rows of an output of the last run.
pub(super) fn compute_logits(
    device: &mut dyn Device,
    output: (Entry, &str),
    wanted: &[usize],
    logits: &mut Logits,
) -> Result<(), EngineError> {
    logits.data.resize(wanted.len() * logits.vocab_size, 0.0);
    device.logits(output, wanted, &mut logits.data).map_err(device_error)
}

pub(super) fn device_error(error: LaunchError) -> EngineError {
    EngineError::Device { op: format!("the op at {}", error.source_line), message: error.message }
}
