//! Chooses the next token from a row of logits, in vLLM's order.
//!
//! Log-probabilities come from the raw logits. The choice is made on: mask of early ends → `logit_bias` → repeated n-grams → penalties
//! (repetition, frequency, presence) → greedy below temperature 1e-5, else temperature → `min_p` → `top_k` → `top_p`
//! → one uniform draw that depends on the request's seed and the token's index only. A logit that is not finite fails
//! the request: no token is ever chosen from a broken row.

pub mod beam;
mod logprobs;
mod ngram;
mod nucleus;
mod params;
mod random;
mod reduce;
mod state;

pub use logprobs::{PositionLogprobs, TokenLogprob};
pub use params::SamplingParams;
pub use random::derive_seed;
pub use state::SamplingState;

use nucleus::Candidate;

use crate::error::EngineError;

/// Why no token could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The model computed NaN or infinity.
    #[error("the model's logit of token {token} at position {position} is {value}; expected a finite number")]
    NonFinite {
        /// The first token at fault.
        token: u32,
        /// Index of the token that was to be chosen.
        position: usize,
        /// Its logit.
        value: f32,
    },
    /// Masks, biases or penalties of the request left no token with a finite score.
    #[error("no token is left to choose at position {position}: relax min_tokens, logit_bias or penalties")]
    NothingLeft {
        /// Index of the token that was to be chosen.
        position: usize,
    },
}

impl From<SampleError> for EngineError {
    fn from(error: SampleError) -> Self {
        match error {
            SampleError::NonFinite { .. } => {
                Self::Device { op: "lm_head".to_owned(), message: error.to_string() }
            }
            SampleError::NothingLeft { .. } => {
                Self::InvalidRequest { message: error.to_string(), param: None }
            }
        }
    }
}

/// The greedy choice from a row of logits: the first of the largest.
#[must_use]
pub fn most_likely(logits: &[f32]) -> u32 {
    let max = reduce::max(logits);
    logits.iter().position(|l| *l == max).unwrap_or(0) as u32
}

/// A token and what was asked about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The chosen token.
    pub token: u32,
    /// Present when the request asks for it.
    pub logprobs: Option<PositionLogprobs>,
}

/// Scratch memory for sampling, reused between rows. Rows do not influence each other.
#[derive(Debug, Default)]
pub struct Sampler {
    processed: Vec<f32>,
    weights: Vec<f32>,
    scratch: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// Chooses the token at index `position` of the sequence. `logits` is `[vocab]`, raw.
    pub fn sample(
        &mut self,
        logits: &[f32],
        state: &SamplingState,
        position: usize,
    ) -> Result<Sampled, SampleError> {
        ensure_finite(logits, position)?;
        let token = if state.changes_logits() {
            let mut processed = std::mem::take(&mut self.processed);
            processed.clear();
            processed.extend_from_slice(logits);
            state.process(&mut processed);
            let token = self.choose(&processed, state, position);
            self.processed = processed;
            token
        } else {
            self.choose(logits, state, position)
        };
        let token = token.ok_or(SampleError::NothingLeft { position })?;
        let num_top = state.params.logprobs;
        let logprobs = num_top.map(|n| logprobs::logprobs(logits, token, n as usize, &mut self.scratch));
        Ok(Sampled { token, logprobs })
    }

    /// Log-probabilities of a token that is known already, such as the next one of a prompt.
    pub fn logprobs(
        &mut self,
        logits: &[f32],
        token: u32,
        num_top: u32,
        position: usize,
    ) -> Result<PositionLogprobs, SampleError> {
        ensure_finite(logits, position)?;
        Ok(logprobs::logprobs(logits, token, num_top as usize, &mut self.scratch))
    }

    /// `None` if no logit is finite.
    fn choose(&mut self, logits: &[f32], state: &SamplingState, position: usize) -> Option<u32> {
        let max = reduce::max(logits);
        if !max.is_finite() {
            return None;
        }
        let params = &state.params;
        if params.is_greedy() {
            return logits.iter().position(|l| *l == max).map(|token| token as u32);
        }
        let uniform = random::uniform(state.seed, position);
        let lowest = self.lowest_kept(logits, max, params);
        if lowest > f32::NEG_INFINITY {
            self.collect_kept(logits, max, lowest, params);
        } else {
            self.weigh_all(logits, max, params);
            if params.top_p >= 1.0 {
                return self.draw(uniform).map(|token| token as u32);
            }
            self.collect_likely(params);
        }
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|c| c.weight));
        self.draw(uniform).map(|index| self.candidates[index].token)
    }

    /// The lowest logit that `min_p` and `top_k` keep; ties with the k-th token are kept.
    fn lowest_kept(&mut self, logits: &[f32], max: f32, params: &SamplingParams) -> f32 {
        let min_p = max + params.temperature * params.min_p.ln();
        if params.top_k == 0 {
            return min_p;
        }
        min_p.max(reduce::kth_largest(logits, params.top_k as usize, &mut self.scratch))
    }

    fn weigh_all(&mut self, logits: &[f32], max: f32, params: &SamplingParams) {
        let inverse = 1.0 / params.temperature;
        self.weights.clear();
        self.weights.extend(logits.iter().map(|l| reduce::exp((l - max) * inverse)));
    }

    /// Candidates from the tokens that `min_p` and `top_k` keep.
    fn collect_kept(&mut self, logits: &[f32], max: f32, lowest: f32, params: &SamplingParams) {
        let inverse = 1.0 / params.temperature;
        let kept = (0_u32..).zip(logits).filter(|(_, l)| **l >= lowest);
        self.candidates.clear();
        self.candidates
            .extend(kept.map(|(token, l)| Candidate { token, weight: reduce::exp((l - max) * inverse) }));
        if params.top_p < 1.0 {
            let total = self.candidates.iter().map(|c| f64::from(c.weight)).sum();
            nucleus::keep_nucleus(&mut self.candidates, total, params.top_p);
        }
    }

    /// Candidates from the weights of the whole vocabulary, by `top_p` alone.
    fn collect_likely(&mut self, params: &SamplingParams) {
        let total = reduce::sum(&self.weights);
        let negligible = nucleus::negligible_weight(self.weights.len(), total, params.top_p);
        let likely = (0_u32..).zip(&self.weights).filter(|(_, w)| **w >= negligible);
        self.candidates.clear();
        self.candidates.extend(likely.map(|(token, &weight)| Candidate { token, weight }));
        nucleus::keep_nucleus(&mut self.candidates, total, params.top_p);
    }

    /// An index into the weights, each with its share of the chance.
    fn draw(&self, uniform: f64) -> Option<usize> {
        reduce::search_cumulative(&self.weights, uniform * reduce::sum(&self.weights))
    }
}

fn ensure_finite(logits: &[f32], position: usize) -> Result<(), SampleError> {
    match reduce::first_non_finite(logits) {
        None => Ok(()),
        Some(token) => Err(SampleError::NonFinite { token: token as u32, position, value: logits[token] }),
    }
}

#[cfg(test)]
mod tests;
