//! Beam search in a step: one row for each beam.

use std::time::Instant;

use crate::exec::Logits;
use crate::sched::plan::{Scheduled, StepPlan};
use crate::sched::request::{Event, FinishReason, Hypothesis};

use super::{Budget, Running, Scheduler, finished};

impl Scheduler {
    /// Plans the beams of a running search, if it is one. False if there are no pages for them.
    pub(super) fn schedule_beams(&mut self, index: usize, plan: &mut StepPlan, budget: &mut Budget) -> bool {
        let Running { seq, slot } = &mut self.running[index];
        let Some(beams) = seq.beams.as_mut().filter(|beams| beams.are_running()) else { return true };
        // If this very search is preempted now, what was added is copied into a free page, which is harmless.
        if beams.reserve(&mut self.kv, &mut plan.copies).is_err() {
            return false;
        }
        let num_rows = plan.batch.num_tokens();
        if let Some(beams) = &seq.beams {
            plan.push_beams(index, seq, beams, *slot);
        }
        budget.num_tokens -= plan.batch.num_tokens() - num_rows;
        true
    }

    /// The prompt of a search is computed: its logits make the first beams.
    pub(super) fn start_beams(&mut self, scheduled: &Scheduled, logits: &Logits, now: Instant) {
        let seq = &mut self.running[scheduled.index].seq;
        if seq.timeline.first_token.is_none() {
            seq.timeline.first_token = Some(now);
            self.metrics.prompt_tokens.increment(seq.num_prompt as u64);
        }
        // A target begins with its forced start, which counts as output.
        let num_uncounted = if seq.source.is_some() { 1 } else { seq.num_prompt };
        let prompt = (std::mem::take(&mut seq.table), seq.num_prompt, num_uncounted);
        if let Some(beams) = &mut seq.beams {
            beams.start(prompt, &seq.sampling, &self.limits);
        }
        self.advance_beams(scheduled, logits);
    }

    /// Takes in the logits of all beams.
    pub(super) fn advance_beams(&mut self, scheduled: &Scheduled, logits: &Logits) {
        let seq = &mut self.running[scheduled.index].seq;
        let Some(beams) = &mut seq.beams else { return };
        let rows = scheduled.logits.clone().map(|row| logits.row(row));
        let event = match beams.advance(rows, &mut self.kv) {
            Ok(None) => return,
            Ok(Some(found)) => {
                let num_tokens: usize = found.iter().map(|h| h.tokens.len()).sum();
                self.metrics.generation_tokens.increment(num_tokens as u64);
                let reason = found
                    .first()
                    .map_or(FinishReason::Length, |best| reason(best, &seq.sampling.params().stop_token_ids));
                seq.send(Event::Hypotheses(found));
                finished(seq, reason)
            }
            Err(error) => Event::Failed(error.into()),
        };
        self.ended.push((scheduled.index, event));
    }
}

/// Why a hypothesis ended.
fn reason(hypothesis: &Hypothesis, stop_token_ids: &[u32]) -> FinishReason {
    match hypothesis.ended_by {
        None => FinishReason::Length,
        Some(token) => FinishReason::Stop { token: Some(token).filter(|t| stop_token_ids.contains(t)) },
    }
}
