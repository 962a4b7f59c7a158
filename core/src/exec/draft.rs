//! What a drafter is asked after a step.

use super::Batch;
use crate::error::EngineError;

/// Guesses tokens ahead from the hidden states of the last step.
///
/// A drafter has a KV cache of its own in the pages of the sequences: *slot* i lies where token i lies and is made of
/// the hidden state of token i and of the token after it. It must see every slot of a sequence, those of its prompt too, or
/// it guesses worse.
pub trait Drafter {
    /// Takes in the slots of `batch` and leaves in `drafts` the most likely tokens that follow: those of all sequences, one
    /// after another, each with as many as [`DraftBatch::num_drafts`] asks for.
    ///
    /// Called at most once after a step, before the next one.
    ///
    /// # Errors
    /// The batch does not follow from the last step, or the device fails.
    fn draft(&mut self, batch: &DraftBatch, drafts: &mut Vec<u32>) -> Result<(), EngineError>;
}

/// The slots that the last step has made possible.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftBatch {
    /// The slots as rows: `token_ids` are the tokens after them, `num_computed` the first slot of a sequence, and
    /// `logits_rows` the last slots of the sequences that want drafts. Pages cover the slots of the drafts too.
    pub slots: Batch,
    /// `[T]` Row of the last step with the hidden state of each slot.
    pub hidden_rows: Vec<usize>,
    /// Drafts that each sequence wants.
    pub num_drafts: Vec<usize>,
}

impl DraftBatch {
    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.token_ids.clear();
        self.slots.logits_rows.clear();
        self.hidden_rows.clear();
        self.num_drafts.clear();
    }
}
