//! How a waiting sequence becomes a running one: what the caches hold of it, and whether there is room for the rest.

use std::time::Instant;

use crate::exec::StateSlot;
use crate::sched::metrics::Unused;
use crate::sched::plan::StepPlan;
use crate::sched::sequence::Sequence;
use crate::ssm::SnapshotSlot;

use super::{Running, Scheduler};

/// How a sequence can start from what the caches hold.
#[derive(Debug, Default)]
struct PrefixHit {
    num_blocks: usize,
    restore: Option<SnapshotSlot>,
    unused: Option<(Unused, usize)>,
}

impl Scheduler {
    /// Moves the head of the queue to the running sequences if there is room.
    pub(super) fn admit_next(&mut self, plan: &mut StepPlan) -> bool {
        let width = self.waiting.front().map_or(1, Sequence::width);
        if self.num_seqs() + width > self.max_num_seqs
            || self
                .blocked_at
                .is_some_and(|(kv, sources)| self.kv.num_free() <= kv && self.sources.num_free() <= sources)
        {
            return false;
        }
        let Some(mut seq) = self.waiting.pop_front() else { return false };
        let hit = self.prefix_hit(&mut seq);
        self.kv.adopt_prefix(&mut seq.table, hit.num_blocks);
        // A spare page for each running sequence or beam, so that it is not preempted right away.
        let needed = self.kv.num_missing(&seq.table, seq.tokens.len()) + self.num_seqs();
        let fits = needed <= self.kv.num_free()
            && seq.source_len().div_ceil(self.sources.block_size()) <= self.sources.num_free();
        let slot = if fits { self.slots.allocate() } else { None };
        let Some(slot) = slot else {
            self.kv.release(&mut seq.table);
            self.blocked_at = Some((self.kv.num_free(), self.sources.num_free()));
            self.waiting.push_front(seq);
            return false;
        };
        // Cannot fail: the pages were counted.
        let _ = self.kv.reserve(&mut seq.table, seq.tokens.len());
        if let Some(source) = &mut seq.source {
            let _ = self.sources.reserve(&mut source.table, source.token_ids.len());
        }
        self.blocked_at = None;
        self.start(seq, slot, &hit, plan);
        true
    }

    fn start(&mut self, mut seq: Sequence, slot: StateSlot, hit: &PrefixHit, plan: &mut StepPlan) {
        seq.num_computed = hit.num_blocks * self.kv.block_size();
        if let Some(snapshot) = hit.restore {
            self.snapshots.touch(snapshot);
            plan.restores.push((snapshot, slot));
        }
        if self.kv.shares_prefixes() {
            self.metrics.prefix_cache_queries.increment(seq.tokens.len() as u64);
            self.metrics.prefix_cache_hits.increment(seq.num_computed as u64);
        }
        if let Some((reason, num_blocks)) = hit.unused {
            self.metrics.count_unused(reason, num_blocks * self.kv.block_size());
        }
        seq.num_cached_tokens.get_or_insert(seq.num_computed);
        seq.timeline.scheduled.get_or_insert_with(Instant::now);
        self.running.push(Running { seq, slot });
    }

    /// How much of a sequence the caches can provide. Recurrent state must be there at the same depth as the pages.
    fn prefix_hit(&self, seq: &mut Sequence) -> PrefixHit {
        let matched = self.kv.match_prefix(&mut seq.table, &seq.tokens);
        if matched == 0 {
            return PrefixHit::default();
        }
        if seq.collects_prompt_logprobs() {
            return PrefixHit { unused: Some((Unused::PromptLogprobs, matched)), ..PrefixHit::default() };
        }
        if !self.has_recurrent_state {
            return PrefixHit { num_blocks: matched, ..PrefixHit::default() };
        }
        let (num_blocks, restore) = match self.snapshots.deepest(seq.table.hashes(matched)) {
            Some((num_blocks, slot)) => (num_blocks, Some(slot)),
            None => (0, None),
        };
        let lost = matched - num_blocks;
        PrefixHit { num_blocks, restore, unused: (lost > 0).then_some((Unused::NoStateSnapshot, lost)) }
    }
}
