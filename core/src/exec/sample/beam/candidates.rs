//! The best continuations of all beams of a search.

use crate::exec::sample::{SampleError, SamplingState, ensure_finite, reduce};

/// One more token for one beam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) beam: usize,
    pub(super) token: u32,
    /// Log-probability of the whole hypothesis.
    pub(super) score: f32,
}

/// Collects candidates; its buffers are reused between steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    all: Vec<Candidate>,
    log_probs: Vec<f32>,
    scratch: Vec<f32>,
}

impl Candidates {
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Adds the `num` best continuations of a beam of this score. `logits: [vocab]`, raw.
    pub(super) fn extend(
        &mut self,
        beam: usize,
        (logits, position): (&[f32], usize),
        (score, sampling): (f32, &SamplingState),
        num: usize,
    ) -> Result<(), SampleError> {
        ensure_finite(logits, position)?;
        self.fill_log_softmax(logits);
        sampling.process(&mut self.log_probs);
        self.log_probs.iter_mut().for_each(|l| *l += score);
        let lowest = reduce::kth_largest(&self.log_probs, num, &mut self.scratch);
        let kept = (0_u32..).zip(&self.log_probs).filter(|(_, l)| **l >= lowest && l.is_finite());
        self.all.extend(kept.map(|(token, &score)| Candidate { beam, token, score }));
        Ok(())
    }

    /// The `num` best, best first; among equals the earlier beam's and the lower token.
    pub(super) fn best(&mut self, num: usize) -> &[Candidate] {
        self.all.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.all.truncate(num);
        &self.all
    }

    fn fill_log_softmax(&mut self, logits: &[f32]) {
        let max = reduce::max(logits);
        self.scratch.clear();
        self.scratch.extend(logits.iter().map(|l| reduce::exp(l - max)));
        let log_sum = reduce::sum(&self.scratch).ln() as f32;
        self.log_probs.clear();
        self.log_probs.extend(logits.iter().map(|l| (l - max) - log_sum));
    }
}
