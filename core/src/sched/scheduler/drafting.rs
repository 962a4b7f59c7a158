//! Drafts for the next step: who gets some, where the drafter finds what it needs, and what came of them.
//!
//! Drafts never take from others: they use rows of the token budget that no sequence needs to decode, and free pages
//! beyond one for each running sequence. They are dropped with the pages of a preempted sequence.

use std::ops::Range;

use crate::exec::{DraftBatch, RunnerLimits};
use crate::sched::sequence::Sequence;
use crate::speculative::{DraftMethod, SpeculativeConfig, ngram};

use super::{Running, Scheduler};

/// What the drafter is asked, with the buffers it reuses.
#[derive(Debug, Default)]
pub(in crate::sched) struct DraftPlan {
    pub(in crate::sched) batch: DraftBatch,
    /// Index among the running sequences of each sequence in the batch; `None` if it has ended.
    indices: Vec<Option<usize>>,
}

/// As much of a configuration as a runner can do.
pub(super) fn within(config: Option<SpeculativeConfig>, limits: &RunnerLimits) -> Option<SpeculativeConfig> {
    let config = config.filter(|_| limits.max_num_drafts > 0)?;
    let num_speculative_tokens = config.num_speculative_tokens.min(limits.max_num_drafts);
    Some(SpeculativeConfig { num_speculative_tokens, ..config })
}

impl Scheduler {
    /// Whether steps are to be followed by a call of the runner's drafter.
    pub(in crate::sched) fn needs_drafter(&self) -> bool {
        self.speculative.is_some_and(|config| config.method == DraftMethod::Mtp)
    }

    /// Proposes what needs no model, and collects what the drafter needs to know after the step that was completed. False
    /// if there is nothing to ask it.
    pub(in crate::sched) fn plan_drafts(&mut self, plan: &mut DraftPlan) -> bool {
        let Some(config) = self.speculative else { return false };
        let num_decoding = self.running.iter().filter(|r| r.seq.num_decode_rows() > 0).count();
        let num_decode_rows = self.running.iter().map(|r| r.seq.num_decode_rows()).sum();
        let mut num_spare_rows = self.max_num_batched_tokens.saturating_sub(num_decode_rows);
        if num_decoding < self.running.len() || !self.waiting.is_empty() {
            // Prompts get the other half.
            num_spare_rows /= 2;
        }
        for index in 0..self.running.len() {
            let most = self.num_useful_drafts(&self.running[index].seq, config);
            let rows = std::mem::replace(&mut self.running[index].seq.drafting.new_rows, 0..0);
            if rows.is_empty() || (most == 0 && !self.kv.shares_prefixes()) {
                continue;
            }
            let is_decoding = self.running[index].seq.num_pending() == 1;
            let num_drafts = if is_decoding { most.min(num_spare_rows) } else { 0 };
            let num_drafts = self.reserve_drafts(index, num_drafts);
            match config.method {
                DraftMethod::Mtp => plan.push(Some(index), &self.running[index], rows, num_drafts),
                DraftMethod::Ngram(sizes) if num_drafts > 0 => {
                    let seq = &mut self.running[index].seq;
                    ngram::propose(&seq.tokens, sizes, num_drafts, &mut seq.drafting.tokens);
                }
                DraftMethod::Ngram(_) => {}
            }
            num_spare_rows -= num_drafts;
        }
        plan.batch.slots.seqs.truncate(plan.indices.len());
        !plan.indices.is_empty()
    }

    /// Takes in what the drafter left, for all sequences one after another.
    pub(in crate::sched) fn take_drafts(&mut self, plan: &DraftPlan, mut drafts: &[u32]) {
        for (index, &num_drafts) in plan.indices.iter().zip(&plan.batch.num_drafts) {
            let (own, rest) = drafts.split_at(num_drafts.min(drafts.len()));
            if let Some(index) = *index {
                self.running[index].seq.drafting.tokens.extend_from_slice(own);
            }
            drafts = rest;
        }
    }

    /// From now on nothing is drafted.
    pub(in crate::sched) fn stop_drafting(&mut self) {
        self.speculative = None;
    }

    /// Lets the drafter see the last slots of a sequence that has ended: other sequences may continue from its pages, which
    /// nobody takes before the drafter has written to them.
    pub(super) fn plan_last_slots(&mut self, index: usize, plan: &mut DraftPlan) {
        if !self.needs_drafter() || !self.kv.shares_prefixes() {
            return;
        }
        let running = &self.running[index];
        if running.seq.drafting.new_rows.is_empty() {
            return;
        }
        plan.push(None, running, running.seq.drafting.new_rows.clone(), 0);
    }

    /// Counts the drafts of a step and gives their pages back.
    pub(super) fn complete_drafts(&mut self, index: usize, num_drafts: usize) {
        let seq = &mut self.running[index].seq;
        let num_accepted = seq.drafting.num_accepted;
        if num_drafts > 0 {
            self.draft_stats.record(num_drafts, num_accepted);
            self.metrics.count_drafts(num_drafts, num_accepted);
            self.kv.truncate(&mut seq.table, seq.tokens.len());
        }
    }

    /// Most drafts that a sequence can use: every verification gives one token more than it accepts, and the text ends at
    /// its limits.
    fn num_useful_drafts(&self, seq: &Sequence, config: SpeculativeConfig) -> usize {
        let output = seq.sampling.params().max_tokens.saturating_sub(seq.sampling.num_output());
        let room = self.limits.max_len.saturating_sub(seq.tokens.len());
        config.num_speculative_tokens.min(output.min(room).saturating_sub(1))
    }

    /// Pages for up to `num_drafts` drafts; returns how many they can be.
    fn reserve_drafts(&mut self, index: usize, num_drafts: usize) -> usize {
        let num_running = self.running.len();
        let seq = &mut self.running[index].seq;
        let len = seq.tokens.len();
        let fits = |n: &usize| match self.kv.num_missing(&seq.table, len + n) {
            0 => true,
            missing => missing + num_running <= self.kv.num_free(),
        };
        let num_drafts = (1..=num_drafts).rev().find(fits).unwrap_or(0);
        if num_drafts > 0 {
            // Cannot fail: the pages were counted.
            let _ = self.kv.reserve(&mut seq.table, len + num_drafts);
        }
        num_drafts
    }
}

impl DraftPlan {
    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.indices.clear();
    }

    /// Adds the slots of a sequence whose newest computed tokens have their hidden states in `rows` of the step.
    fn push(
        &mut self,
        index: Option<usize>,
        Running { seq, slot }: &Running,
        rows: Range<usize>,
        num_drafts: usize,
    ) {
        let DraftBatch { slots, hidden_rows, num_drafts: all_num_drafts } = &mut self.batch;
        let first_slot = seq.num_computed - rows.len();
        // The last token of an ended sequence may be computed, and no token follows it.
        let next_ids = &seq.tokens[first_slot + 1..seq.tokens.len().min(seq.num_computed + 1)];
        if next_ids.is_empty() {
            return;
        }
        slots.token_ids.extend_from_slice(next_ids);
        if num_drafts > 0 {
            slots.logits_rows.push(slots.token_ids.len() - 1);
        }
        let entry = slots.reuse_seq(self.indices.len());
        entry.num_tokens = next_ids.len();
        entry.num_computed = first_slot;
        entry.block_table.extend_from_slice(seq.table.blocks());
        entry.state_slot = *slot;
        entry.images.clone_from(&seq.images);
        hidden_rows.extend(rows.take(next_ids.len()));
        all_num_drafts.push(num_drafts);
        self.indices.push(index);
    }
}
