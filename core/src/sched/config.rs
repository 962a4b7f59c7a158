//! What the user decides about scheduling; the runner's own limits are in `RunnerLimits`.

use crate::speculative::SpeculativeConfig;

/// Scheduling options. A cap above the runner's limit has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// The model's end-of-sequence tokens.
    pub eos_token_ids: Vec<u32>,
    /// Share the KV pages of equal prompt beginnings between requests.
    pub enable_prefix_caching: bool,
    /// Most sequences in one step; `None` leaves it to the runner.
    pub max_num_seqs: Option<usize>,
    /// Most tokens in one step; `None` leaves it to the runner.
    pub max_num_batched_tokens: Option<usize>,
    /// Most logits rows that one step computes for prompt log-probabilities; bounds the logits buffer.
    pub max_prompt_logprobs_rows: usize,
    /// Seeds the requests that bring no seed; `None` draws one. The same seed and order of requests repeat a run.
    pub seed: Option<u64>,
    /// Guess tokens ahead; `None` computes one token per step.
    pub speculative: Option<SpeculativeConfig>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            eos_token_ids: Vec::new(),
            enable_prefix_caching: true,
            max_num_seqs: None,
            max_num_batched_tokens: None,
            max_prompt_logprobs_rows: 64,
            seed: None,
            speculative: None,
        }
    }
}
