//! What one step computes, from the scheduler's point of view: which sequence owns which rows and logits.

use std::ops::Range;
use std::sync::Arc;

use crate::exec::{Batch, BatchSource, StateSlot};
use crate::ssm::SnapshotSlot;

use super::sequence::{Sequence, Source};

/// What a sequence does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Known tokens, with more known ones to follow: nothing is sampled.
    Prefill,
    /// The rows end with the last known token and its drafts; the logits of each of these choose the token after it.
    Decode,
}

/// One sequence's share of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scheduled {
    /// Index among the running sequences.
    pub(super) index: usize,
    /// Rows of known tokens, from the first one that is not computed.
    pub(super) num_tokens: usize,
    /// Rows of drafts, behind them.
    pub(super) num_drafts: usize,
    /// The first row in the step.
    pub(super) first_row: usize,
    pub(super) phase: Phase,
    /// This sequence's rows of the step's logits.
    pub(super) logits: Range<usize>,
}

/// A step, with the buffers it reuses.
#[derive(Debug, Default)]
pub(super) struct StepPlan {
    pub(super) batch: Batch,
    pub(super) seqs: Vec<Scheduled>,
    /// State to bring back before the step.
    pub(super) restores: Vec<(SnapshotSlot, StateSlot)>,
    /// State to keep after the step; known once it is complete.
    pub(super) saves: Vec<(StateSlot, SnapshotSlot)>,
}

impl StepPlan {
    pub(super) fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.batch.token_ids.clear();
        self.batch.logits_rows.clear();
        self.seqs.clear();
        self.restores.clear();
        self.saves.clear();
    }

    /// Adds the next `num_tokens` of a running sequence, and its drafts behind the last known one. `prompt_rows` are the positions whose logits its prompt
    /// log-probabilities need.
    pub(super) fn push(
        &mut self,
        index: usize,
        seq: &Sequence,
        slot: StateSlot,
        num_tokens: usize,
        prompt_rows: Range<usize>,
    ) {
        let first = seq.num_computed;
        let end = first + num_tokens;
        let first_row = self.batch.token_ids.len();
        self.batch.token_ids.extend_from_slice(&seq.tokens[first..end]);

        let first_logits = self.batch.logits_rows.len();
        self.batch.logits_rows.extend(prompt_rows.map(|position| first_row + position - first));
        let phase = if end == seq.tokens.len() { Phase::Decode } else { Phase::Prefill };
        let mut num_drafts = 0;
        if phase == Phase::Decode {
            num_drafts = seq.drafting.tokens.len();
            self.batch.token_ids.extend_from_slice(&seq.drafting.tokens);
            self.batch.logits_rows.extend(first_row + num_tokens - 1..first_row + num_tokens + num_drafts);
        }
        let logits = first_logits..self.batch.logits_rows.len();

        self.push_batch_seq(seq, slot, num_tokens, num_drafts);
        self.seqs.push(Scheduled { index, num_tokens, num_drafts, first_row, phase, logits });
    }

    /// Makes the batch as long as the plan, once all sequences are in.
    pub(super) fn finish(&mut self) {
        self.batch.seqs.truncate(self.seqs.len());
    }

    fn push_batch_seq(&mut self, seq: &Sequence, slot: StateSlot, num_tokens: usize, num_drafts: usize) {
        let entry = self.batch.reuse_seq(self.seqs.len());
        entry.num_tokens = num_tokens + num_drafts;
        entry.num_drafts = num_drafts;
        entry.num_accepted = seq.drafting.num_accepted;
        entry.num_computed = seq.num_computed;
        entry.block_table.extend_from_slice(seq.table.blocks());
        entry.state_slot = slot;
        fill_source(&mut entry.source, seq.source.as_ref());
    }
}

/// Makes an entry of an earlier step that of this source.
fn fill_source(entry: &mut Option<BatchSource>, source: Option<&Source>) {
    let Some(source) = source else {
        *entry = None;
        return;
    };
    let token_ids = Arc::clone(&source.token_ids);
    let mut block_table = entry.take().map_or_else(Vec::new, |earlier| earlier.block_table);
    block_table.clear();
    block_table.extend_from_slice(source.table.blocks());
    *entry = Some(BatchSource { token_ids, block_table });
}
