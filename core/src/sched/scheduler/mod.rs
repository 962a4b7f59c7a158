//! Who runs in the next step: continuous batching with chunked prefill under one token budget.
//!
//! Decode rows come first, then the prefill chunks of running sequences, then new ones, first come first served. A
//! sequence is admitted when pages for all its known tokens are free. When a decoding sequence needs a page and none
//! is free, the latest running sequence loses its pages and is computed again later; its client notices nothing.
//!
//! With speculative decoding a decoding sequence has rows for its drafts too (`drafting`).
//!
//! A model with an encoder has a second pool, for what decoders see of sources. A sequence gets all pages of its source at
//! admission; the step with its first rows encodes it.

mod admission;
mod beams;
mod drafting;

use std::collections::VecDeque;
use std::time::Instant;

use crate::error::EngineError;
use crate::exec::sample::Sampler;
use crate::exec::{Logits, RunnerLimits, StateSlot};
use crate::kv::KvCache;
use crate::speculative::{DraftStats, SpeculativeConfig};
use crate::ssm::{SnapshotIndex, SnapshotSlot, StatePool};

use crate::sched::config::SchedulerConfig;
use crate::sched::engine::EngineSnapshot;
use crate::sched::metrics::EngineMetrics;
use crate::sched::plan::{Phase, Scheduled, StepPlan};
use crate::sched::request::{Event, FinishReason, RequestId};
use crate::sched::sequence::{Limits, Sequence};

pub(in crate::sched) use drafting::DraftPlan;

/// A sequence that holds pages and a state slot.
#[derive(Debug)]
struct Running {
    seq: Sequence,
    slot: StateSlot,
}

/// What is left to give away in the step being planned.
#[derive(Debug)]
struct Budget {
    num_tokens: usize,
    num_prompt_logprobs_rows: usize,
}

#[derive(Debug)]
pub(in crate::sched) struct Scheduler {
    max_num_batched_tokens: usize,
    max_num_seqs: usize,
    max_prompt_logprobs_rows: usize,
    has_recurrent_state: bool,
    /// No more drafts than the runner can take back; `None` if nothing is drafted.
    speculative: Option<SpeculativeConfig>,
    draft_stats: DraftStats,
    limits: Limits,
    kv: KvCache,
    /// Pages of sources; none for a model without an encoder.
    sources: KvCache,
    slots: StatePool,
    snapshots: SnapshotIndex,
    waiting: VecDeque<Sequence>,
    /// In order of arrival: the last one is the first to be preempted.
    running: Vec<Running>,
    /// Free pages of both pools when the head of the queue last failed to get its share. Until one has more it is not
    /// tried again.
    blocked_at: Option<(usize, usize)>,
    num_preemptions: u64,
    sampler: Sampler,
    metrics: EngineMetrics,
    /// Indices of sequences that end with the step being completed.
    ended: Vec<(usize, Event)>,
    /// Ended sequences; they count as in flight until the engine's snapshot shows their pages free.
    buried: Vec<Sequence>,
}

impl Scheduler {
    /// `num_snapshot_slots` is 0 for a runner that cannot copy recurrent state.
    pub(in crate::sched) fn new(
        config: &SchedulerConfig,
        limits: &RunnerLimits,
        num_snapshot_slots: usize,
    ) -> Self {
        let max_num_batched_tokens = cap(limits.max_num_batched_tokens, config.max_num_batched_tokens);
        let max_num_seqs = max_num_seqs(config, limits);
        // With a source, equal target tokens do not mean equal keys and values.
        let share_prefixes = config.enable_prefix_caching && limits.source.is_none();
        let use_snapshots = limits.has_recurrent_state && share_prefixes;
        Self {
            max_num_batched_tokens,
            max_num_seqs,
            max_prompt_logprobs_rows: config.max_prompt_logprobs_rows.max(1),
            has_recurrent_state: limits.has_recurrent_state,
            speculative: drafting::within(config.speculative, limits),
            draft_stats: DraftStats::default(),
            limits: Limits { eos_token_ids: config.eos_token_ids.clone(), max_len: max_len(limits) },
            kv: KvCache::new(limits.num_blocks, limits.block_size, share_prefixes),
            sources: KvCache::new(limits.source.map_or(1, |s| s.num_blocks), limits.block_size, false),
            slots: StatePool::new(max_num_seqs),
            snapshots: SnapshotIndex::new(if use_snapshots { num_snapshot_slots } else { 0 }),
            waiting: VecDeque::new(),
            running: Vec::new(),
            blocked_at: None,
            num_preemptions: 0,
            sampler: Sampler::default(),
            metrics: EngineMetrics::register(),
            ended: Vec::new(),
            buried: Vec::new(),
        }
    }

    pub(in crate::sched) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Sequences that running requests can have in a step.
    fn num_seqs(&self) -> usize {
        self.running.iter().map(|r| r.seq.width()).sum()
    }

    pub(in crate::sched) fn submit(&mut self, seq: Sequence) {
        self.waiting.push_back(seq);
    }

    /// Ends a request wherever it is; its pages are free afterwards. An unknown id has ended already.
    pub(in crate::sched) fn abort(&mut self, id: RequestId) {
        if let Some(index) = self.running.iter().position(|r| r.seq.id == id) {
            self.end_running(index, |seq| finished(seq, FinishReason::Abort));
        } else if let Some(index) = self.waiting.iter().position(|seq| seq.id == id)
            && let Some(seq) = self.waiting.remove(index)
        {
            // The head may have changed.
            self.blocked_at = None;
            seq.send(finished(&seq, FinishReason::Abort));
            self.buried.push(seq);
        }
    }

    /// Fails the sequences that took part in a step.
    pub(in crate::sched) fn fail_step(&mut self, plan: &StepPlan, error: &EngineError) {
        let mut indices: Vec<usize> = plan.seqs.iter().map(|s| s.index).collect();
        indices.sort_unstable();
        for index in indices.into_iter().rev() {
            self.end_running(index, |_| Event::Failed(error.clone()));
        }
    }

    /// Fails everything, running and waiting.
    pub(in crate::sched) fn fail_all(&mut self, error: &EngineError) {
        for index in (0..self.running.len()).rev() {
            self.end_running(index, |_| Event::Failed(error.clone()));
        }
        for seq in self.waiting.drain(..) {
            seq.send(Event::Failed(error.clone()));
            self.buried.push(seq);
        }
    }

    /// Fails one new request.
    pub(in crate::sched) fn refuse(&mut self, seq: Sequence, error: EngineError) {
        seq.send(Event::Failed(error));
        self.buried.push(seq);
    }

    /// No snapshot is trusted any more.
    pub(in crate::sched) fn forget_snapshots(&mut self) {
        self.snapshots.clear();
    }

    /// Chooses the rows of the next step. An empty plan means that nothing can run.
    pub(in crate::sched) fn schedule(&mut self, plan: &mut StepPlan) {
        plan.clear();
        let mut budget = Budget {
            num_tokens: self.max_num_batched_tokens,
            num_prompt_logprobs_rows: self.max_prompt_logprobs_rows,
        };
        let num_preemptions = self.num_preemptions;
        self.schedule_decodes(plan, &mut budget);
        for index in 0..self.running.len() {
            if self.running[index].seq.num_pending() > 1 {
                self.schedule_chunk(index, plan, &mut budget);
            }
        }
        // Who was just preempted would only take the pages back.
        if num_preemptions == self.num_preemptions {
            while budget.num_tokens > 0 && self.admit_next(plan) {
                self.schedule_chunk(self.running.len() - 1, plan, &mut budget);
            }
        }
        plan.finish();
    }

    /// Takes in the results of a step that was computed. `drafts` learns of the sequences that end with it.
    pub(in crate::sched) fn complete(
        &mut self,
        plan: &mut StepPlan,
        logits: &Logits,
        drafts: &mut DraftPlan,
    ) {
        drafts.clear();
        let now = Instant::now();
        self.metrics.iteration_tokens.record(plan.batch.num_tokens() as f64);
        for scheduled in &plan.seqs {
            self.complete_one(scheduled, logits, now, &mut plan.saves);
        }
        let mut ended = std::mem::take(&mut self.ended);
        ended.sort_unstable_by_key(|(index, _)| *index);
        for (index, event) in ended.drain(..).rev() {
            if let Event::Finished { .. } = event {
                self.metrics.record_times(&self.running[index].seq.timeline, now);
            }
            self.plan_last_slots(index, drafts);
            self.end_running(index, |_| event);
        }
        self.ended = ended;
    }

    /// What the outside sees, also as metrics. Sequences that ended stop counting as in flight when `publish` has
    /// made it visible.
    pub(in crate::sched) fn report(&mut self, publish: impl FnOnce(EngineSnapshot)) {
        let snapshot = EngineSnapshot {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_usage: self.kv.usage(),
            last_progress: Instant::now(),
            num_blocks: self.kv.capacity(),
            num_free_blocks: self.kv.num_free(),
            block_size: self.kv.block_size(),
            num_preemptions: self.num_preemptions,
            drafts: self.draft_stats,
            draining: false,
            healthy: true,
        };
        self.metrics.num_requests_running.set(snapshot.running as f64);
        self.metrics.num_requests_waiting.set(snapshot.waiting as f64);
        self.metrics.kv_cache_usage_perc.set(snapshot.kv_usage);
        publish(snapshot);
        self.buried.clear();
    }

    fn schedule_decodes(&mut self, plan: &mut StepPlan, budget: &mut Budget) {
        let mut index = 0;
        while index < self.running.len() {
            if !self.schedule_beams(index, plan, budget) {
                self.preempt_latest();
                continue;
            }
            let Running { seq, slot } = &mut self.running[index];
            if seq.num_pending() == 1 {
                if self.kv.reserve(&mut seq.table, seq.tokens.len()).is_err() {
                    // Takes from the end: what is planned already stays.
                    self.preempt_latest();
                    continue;
                }
                let prompt_rows = seq.prompt_rows(seq.tokens.len());
                budget.num_tokens -= 1 + seq.drafting.tokens.len();
                plan.push(index, seq, *slot, 1, prompt_rows);
            }
            index += 1;
        }
    }

    /// Plans as much of a sequence's known tokens as the budget allows; its pages are reserved since admission.
    fn schedule_chunk(&mut self, index: usize, plan: &mut StepPlan, budget: &mut Budget) {
        let Running { seq, slot } = &self.running[index];
        let first = seq.num_computed;
        let mut end = first + seq.num_pending().min(budget.num_tokens);
        if let Some(boundary) = self.snapshot_boundary(seq) {
            end = end.min(boundary);
        }
        let wanted = seq.prompt_rows(end);
        if wanted.len() > budget.num_prompt_logprobs_rows {
            end = wanted.start + budget.num_prompt_logprobs_rows;
        }
        if end == first {
            return;
        }
        let prompt_rows = seq.prompt_rows(end);
        // A source cannot be cut: the last one of a step may exceed the budget.
        budget.num_tokens = (budget.num_tokens - (end - first)).saturating_sub(seq.num_to_encode());
        budget.num_prompt_logprobs_rows -= prompt_rows.len();
        plan.push(index, seq, *slot, end - first, prompt_rows);
    }

    /// Where the recurrent state of a prompt is worth keeping: after its last page that can be a hit. A chunk ends
    /// there.
    fn snapshot_boundary(&self, seq: &Sequence) -> Option<usize> {
        let block_size = self.kv.block_size();
        let boundary = (seq.num_prompt - 1) / block_size * block_size;
        (self.snapshots.is_enabled() && seq.num_computed < boundary).then_some(boundary)
    }

    fn complete_one(
        &mut self,
        scheduled: &Scheduled,
        logits: &Logits,
        now: Instant,
        saves: &mut Vec<(StateSlot, SnapshotSlot)>,
    ) {
        if scheduled.phase == Phase::Beams {
            return self.advance_beams(scheduled, logits);
        }
        let boundary = self.snapshot_boundary(&self.running[scheduled.index].seq);
        let Running { seq, slot } = &mut self.running[scheduled.index];
        let num_output = seq.sampling.num_output();
        // A search takes the logits behind its prompt itself.
        let starts_beams = seq.beams.is_some() && scheduled.phase == Phase::Decode;
        let outcome = if starts_beams {
            Ok(None)
        } else {
            seq.advance(scheduled, logits, &mut self.sampler, &self.limits)
        };
        let num_rows = scheduled.num_tokens + seq.drafting.num_accepted;
        if seq.beams.is_none() {
            seq.drafting.new_rows = scheduled.first_row..scheduled.first_row + num_rows;
        }
        seq.num_computed += num_rows;
        self.kv.publish(&mut seq.table, &seq.tokens, seq.num_computed);
        if boundary == Some(seq.num_computed)
            && let Some(hash) = seq.table.hashes(seq.num_computed / self.kv.block_size()).last()
            && let Some(snapshot) = self.snapshots.insert(*hash)
        {
            saves.push((*slot, snapshot));
        }
        if starts_beams {
            return self.start_beams(scheduled, logits, now);
        }
        let num_sampled = seq.sampling.num_output() - num_output;
        if num_sampled > 0 {
            self.metrics.generation_tokens.increment(num_sampled as u64);
            if seq.timeline.first_token.is_none() {
                seq.timeline.first_token = Some(now);
                self.metrics.prompt_tokens.increment(seq.num_prompt as u64);
            }
        }
        match outcome {
            Ok(None) => {}
            Ok(Some(reason)) => self.ended.push((scheduled.index, finished(seq, reason))),
            Err(error) => self.ended.push((scheduled.index, Event::Failed(error))),
        }
        self.complete_drafts(scheduled.index, scheduled.num_drafts);
    }

    fn preempt_latest(&mut self) {
        let Some(Running { mut seq, slot }) = self.running.pop() else { return };
        self.release(&mut seq, slot);
        seq.num_computed = 0;
        seq.drafting.reset();
        self.num_preemptions += 1;
        self.metrics.num_preemptions.increment(1);
        self.blocked_at = None;
        self.waiting.push_front(seq);
    }

    /// Takes back all that a running sequence holds.
    fn release(&mut self, seq: &mut Sequence, slot: StateSlot) {
        self.kv.release(&mut seq.table);
        if let Some(beams) = &mut seq.beams {
            beams.stop(&mut self.kv);
        }
        if let Some(source) = &mut seq.source {
            self.sources.release(&mut source.table);
        }
        self.slots.release(slot);
    }

    fn end_running(&mut self, index: usize, event: impl FnOnce(&Sequence) -> Event) {
        let Running { mut seq, slot } = self.running.remove(index);
        self.release(&mut seq, slot);
        self.blocked_at = None;
        seq.send(event(&seq));
        self.buried.push(seq);
    }
}

fn cap(own: usize, cap: Option<usize>) -> usize {
    own.min(cap.unwrap_or(own)).max(1)
}

/// Most sequences of a step: every one can have its decode row in every step.
pub(in crate::sched) fn max_num_seqs(config: &SchedulerConfig, limits: &RunnerLimits) -> usize {
    let max_num_batched_tokens = cap(limits.max_num_batched_tokens, config.max_num_batched_tokens);
    cap(limits.max_num_seqs, config.max_num_seqs).min(max_num_batched_tokens)
}

/// Longest sequence that can run: the model's limit, or all pages if they hold less.
pub(in crate::sched) fn max_len(limits: &RunnerLimits) -> usize {
    limits.max_model_len.min(limits.num_blocks.saturating_sub(1) * limits.block_size)
}

/// Longest source that can run; `None` for a model without an encoder.
pub(in crate::sched) fn max_source_len(limits: &RunnerLimits) -> Option<usize> {
    let source = limits.source?;
    Some(source.max_len.min(source.num_blocks.saturating_sub(1) * limits.block_size))
}

fn finished(seq: &Sequence, reason: FinishReason) -> Event {
    Event::Finished { reason, num_cached_tokens: seq.num_cached_tokens.unwrap_or(0) }
}
