//! What one step computes, from the scheduler's point of view: which sequence owns which rows and logits.

use std::ops::Range;
use std::sync::Arc;

use crate::exec::{Batch, BatchSource, BlockId, StateSlot};
use crate::kv::BlockTable;
use crate::ssm::SnapshotSlot;

use super::beams::Beams;
use super::sequence::{Sequence, Source};

/// What a sequence does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Known tokens, with more known ones to follow: nothing is sampled.
    Prefill,
    /// The rows end with the last known token and its drafts; the logits of each of these choose the token after it.
    Decode,
    /// One row for each beam of a search, with its logits.
    Beams,
}

/// One sequence's share of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scheduled {
    /// Index among the running sequences.
    pub(super) index: usize,
    /// Rows of known tokens, from the first one that is not computed; 0 for beams, which are no tokens of the sequence
    /// itself.
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
    num_batch_seqs: usize,
    pub(super) seqs: Vec<Scheduled>,
    /// KV pages to copy before the step, in this order.
    pub(super) copies: Vec<(BlockId, BlockId)>,
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
        self.num_batch_seqs = 0;
        self.seqs.clear();
        self.copies.clear();
        self.restores.clear();
        self.saves.clear();
    }

    /// Adds the next `num_tokens` of a running sequence, and its drafts behind the last known one. `prompt_rows` are the
    /// positions whose logits its prompt log-probabilities need.
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

        self.push_batch_seq(seq, &seq.table, slot, (first, num_tokens, num_drafts));
        self.seqs.push(Scheduled { index, num_tokens, num_drafts, first_row, phase, logits });
    }

    /// Adds the last token of every beam of a running search.
    pub(super) fn push_beams(&mut self, index: usize, seq: &Sequence, beams: &Beams, slot: StateSlot) {
        let first_logits = self.batch.logits_rows.len();
        let first_row = self.batch.token_ids.len();
        for (token, table) in beams.last_tokens().zip(beams.tables()) {
            self.batch.logits_rows.push(self.batch.token_ids.len());
            self.batch.token_ids.push(token);
            self.push_batch_seq(seq, table, slot, (beams.len() - 1, 1, 0));
        }
        let logits = first_logits..self.batch.logits_rows.len();
        let phase = Phase::Beams;
        self.seqs.push(Scheduled { index, num_tokens: 0, num_drafts: 0, first_row, phase, logits });
    }

    /// Makes the batch as long as the plan, once all sequences are in.
    pub(super) fn finish(&mut self) {
        self.batch.seqs.truncate(self.num_batch_seqs);
    }

    /// Adds the rows of a sequence: from `num_computed`, so many known tokens, so many drafts.
    fn push_batch_seq(
        &mut self,
        seq: &Sequence,
        table: &BlockTable,
        slot: StateSlot,
        (num_computed, num_tokens, num_drafts): (usize, usize, usize),
    ) {
        let entry = self.batch.reuse_seq(self.num_batch_seqs);
        self.num_batch_seqs += 1;
        entry.num_tokens = num_tokens + num_drafts;
        entry.num_drafts = num_drafts;
        entry.num_accepted = seq.drafting.num_accepted;
        entry.num_computed = num_computed;
        entry.block_table.extend_from_slice(table.blocks());
        entry.state_slot = slot;
        entry.images.clone_from(&seq.images);
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
