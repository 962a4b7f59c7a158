//! Beam search over a model's log-probabilities, step by step, as transformers' `generate` (5.x) defines it.
//!
//! Each step takes the best `num_beams · max(2, 1 + ends)` continuations of all beams. Those that end and are among the
//! first `num_beams` become finished hypotheses; the best of the others are the next beams. Where the keys and values
//! of beams lie is the scheduler's business: a step tells it which beam each new one continues.

mod candidates;
mod params;

pub use params::{BeamParams, EarlyStopping};

use candidates::{Candidate, Candidates};

use super::{SampleError, SamplingState};

/// Below every score that a hypothesis can have, as transformers has it.
const WORST_SCORE: f32 = -1e9;

/// A result of the search.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// Output tokens, with the token that ended it.
    pub tokens: Vec<u32>,
    /// Sum of the log-probabilities of its tokens over its length to the power of the length penalty.
    pub score: f32,
    /// The end-of-sequence or stop token that ended it; `None` if it became too long.
    pub ended_by: Option<u32>,
}

/// Lengths in tokens, prompt included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLengths {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens at the start of the prompt that the length of a hypothesis does not count: all of it, or the decoder's
    /// start token where the rest of the prompt is a forced start of the output.
    pub uncounted: usize,
    /// Hypotheses end here at the latest.
    pub max: usize,
}

/// A running hypothesis.
#[derive(Clone, Debug)]
struct Beam {
    output: Vec<u32>,
    /// Sum of log-probabilities.
    score: f32,
    sampling: SamplingState,
}

/// The search of one request.
#[derive(Clone, Debug)]
pub struct BeamSearch {
    params: BeamParams,
    /// Tokens that end a hypothesis.
    ends: Vec<u32>,
    lengths: SearchLengths,
    /// Best first.
    beams: Vec<Beam>,
    /// Best first, at most `num_beams`.
    finished: Vec<Hypothesis>,
    /// Whether a running beam may still get among the finished ones.
    can_improve: bool,
    candidates: Candidates,
}

impl BeamSearch {
    /// The search before the first output token: one beam, without output.
    #[must_use]
    pub fn new(params: BeamParams, sampling: SamplingState, lengths: SearchLengths, ends: Vec<u32>) -> Self {
        Self {
            params,
            ends,
            lengths,
            beams: vec![Beam { output: Vec::new(), score: 0.0, sampling }],
            finished: Vec::new(),
            can_improve: true,
            candidates: Candidates::default(),
        }
    }

    /// The last tokens of the beams, whose logits the next step needs; all beams are equally long.
    pub fn last_tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.beams.iter().filter_map(|beam| beam.output.last().copied())
    }

    /// Length of every beam, prompt included.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // a prompt is never empty
    pub fn len(&self) -> usize {
        self.lengths.prompt + self.beams.first().map_or(0, |beam| beam.output.len())
    }

    /// Takes one step. `rows` are the logits after each beam, `[vocab]` each. Returns the beam that each new beam
    /// continues, or `None` when the search is over.
    ///
    /// # Errors
    /// A logit is not finite, or masks leave no token at all.
    pub fn advance<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a [f32]>,
    ) -> Result<Option<Vec<usize>>, SampleError> {
        let position = self.len();
        let num_candidates = self.params.num_beams * (1 + self.ends.len()).max(2);
        self.candidates.clear();
        for (index, (beam, row)) in self.beams.iter().zip(rows).enumerate() {
            let beam = (beam.score, &beam.sampling);
            self.candidates.extend(index, (row, position), beam, num_candidates)?;
        }
        let candidates = self.candidates.best(num_candidates).to_vec();
        if candidates.is_empty() && self.finished.is_empty() {
            return Err(SampleError::NothingLeft { position });
        }
        let len = position + 1;
        let (ending, running): (Vec<_>, Vec<_>) =
            candidates.iter().enumerate().partition(|(_, c)| len >= self.lengths.max || self.is_end(c.token));
        let finishing = ending.into_iter().filter(|(rank, _)| *rank < self.params.num_beams);
        self.finish(finishing.map(|(_, c)| *c).collect(), len);

        let next: Vec<Candidate> = running.into_iter().map(|(_, c)| *c).take(self.params.num_beams).collect();
        self.can_improve &= next.first().is_some_and(|best| self.may_improve(best.score, len));
        let is_over = !self.can_improve || self.is_full();
        self.beams = next.iter().map(|c| self.beams[c.beam].with(c)).collect();
        Ok((!is_over).then(|| next.iter().map(|c| c.beam).collect()))
    }

    /// The best hypotheses, best first, once the search is over.
    #[must_use]
    pub fn best(&self) -> Vec<Hypothesis> {
        self.finished.iter().take(self.params.num_return).cloned().collect()
    }

    fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Whether there are enough finished hypotheses, and more are not wanted.
    fn is_full(&self) -> bool {
        self.params.early_stopping == EarlyStopping::WhenFull && self.finished.len() == self.params.num_beams
    }

    fn finish(&mut self, ending: Vec<Candidate>, len: usize) {
        for candidate in ending {
            let mut tokens = self.beams[candidate.beam].output.clone();
            tokens.push(candidate.token);
            let ended_by = Some(candidate.token).filter(|&token| self.is_end(token));
            self.finished.push(Hypothesis { tokens, score: self.normalized(candidate.score, len), ended_by });
        }
        // Stable: what finished earlier stays before its equals.
        self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(self.params.num_beams);
    }

    /// Whether a beam of this score could still beat a finished hypothesis.
    fn may_improve(&self, score: f32, len: usize) -> bool {
        let at_longest =
            self.params.early_stopping == EarlyStopping::Never && self.params.length_penalty > 0.0;
        let best_possible = self.normalized(score, if at_longest { self.lengths.max } else { len });
        let is_full = self.finished.len() == self.params.num_beams;
        let worst = self.finished.last().filter(|_| is_full).map_or(WORST_SCORE, |h| h.score);
        best_possible > worst
    }

    fn normalized(&self, score: f32, len: usize) -> f32 {
        score / ((len - self.lengths.uncounted) as f32).powf(self.params.length_penalty)
    }
}

impl Beam {
    fn with(&self, candidate: &Candidate) -> Self {
        let mut beam = self.clone();
        beam.output.push(candidate.token);
        beam.score = candidate.score;
        beam.sampling.record(candidate.token);
        beam
    }
}

#[cfg(test)]
mod tests;
