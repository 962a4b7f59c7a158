//! What the sampler remembers of one sequence: its parameters, its seed, and which tokens occurred.

use std::collections::HashMap;

use super::ngram;
use super::params::SamplingParams;

/// One sequence's sampling, between steps.
#[derive(Clone, Debug)]
pub struct SamplingState {
    pub(super) params: SamplingParams,
    pub(super) seed: u64,
    /// Masked while fewer than `min_tokens` were sampled: end-of-sequence and stop tokens.
    pub(super) ends: Vec<u32>,
    pub(super) num_output: usize,
    /// Occurrences in the output, of tokens in prompt and output. Kept only while a penalty needs it.
    pub(super) occurrences: HashMap<u32, u32>,
    /// Prompt and output. Kept only while n-grams must not repeat.
    history: Vec<u32>,
}

impl SamplingState {
    /// The state before the first token. `seed` is the request's own or one drawn for it.
    #[must_use]
    pub fn new(params: SamplingParams, seed: u64, prompt: &[u32], eos_token_ids: &[u32]) -> Self {
        let mut ends = Vec::new();
        if params.min_tokens > 0 {
            ends.extend(eos_token_ids.iter().chain(&params.stop_token_ids));
        }
        let mut occurrences = HashMap::new();
        if params.repetition_penalty != 1.0 {
            occurrences.extend(prompt.iter().map(|&token| (token, 0)));
        }
        let history = if params.no_repeat_ngram_size > 0 { prompt.to_vec() } else { Vec::new() };
        Self { params, seed, ends, num_output: 0, occurrences, history }
    }

    /// The request's parameters.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Tokens sampled so far.
    #[must_use]
    pub fn num_output(&self) -> usize {
        self.num_output
    }

    /// Takes note of a token that was sampled and kept.
    pub fn record(&mut self, token: u32) {
        self.num_output += 1;
        if self.has_penalties() {
            *self.occurrences.entry(token).or_insert(0) += 1;
        }
        if self.params.no_repeat_ngram_size > 0 {
            self.history.push(token);
        }
    }

    /// Whether the choice is made on changed logits.
    pub(super) fn changes_logits(&self) -> bool {
        self.masks_ends()
            || !self.params.logit_bias.is_empty()
            || self.params.no_repeat_ngram_size > 0
            || self.has_penalties()
    }

    fn masks_ends(&self) -> bool {
        self.num_output < self.params.min_tokens
    }

    fn has_penalties(&self) -> bool {
        let p = &self.params;
        p.repetition_penalty != 1.0 || p.frequency_penalty != 0.0 || p.presence_penalty != 0.0
    }

    /// Masks, then biases, then forbids repeated n-grams, then penalises: repetition, frequency, presence. Ids were checked against the vocabulary.
    pub(super) fn process(&self, logits: &mut [f32]) {
        if self.masks_ends() {
            for &token in &self.ends {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        for &(token, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        for token in ngram::completions(&self.history, self.params.no_repeat_ngram_size) {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let SamplingParams { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.params;
        for (&token, &count) in &self.occurrences {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            if count > 0 {
                *logit -= frequency_penalty * count as f32;
                *logit -= presence_penalty;
            }
        }
    }
}
