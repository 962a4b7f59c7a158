//! What a client asks the engine for, and what the engine tells it back.

use crate::error::EngineError;

/// Identifies one running request inside one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// How the next token is chosen. Semantics follow vLLM's `SamplingParams`.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Below 1e-5 the choice is greedy.
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 keeps everything.
    pub top_p: f32,
    /// Number of most likely tokens kept; 0 keeps everything.
    pub top_k: u32,
    /// Tokens less likely than `min_p` times the most likely one are dropped; 0 drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt and output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from every token that occurs in the output.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes sampling repeatable; `None` draws a seed.
    pub seed: Option<u64>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// No stop token or end-of-sequence is sampled before this many tokens.
    pub min_tokens: usize,
    /// Generation ends after one of these; the token is reported as the stop reason.
    pub stop_token_ids: Vec<u32>,
    /// Sample on through the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Report the chosen token's log-probability and this many of the most likely ones.
    pub logprobs: Option<u32>,
    /// The same for every prompt position.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            max_tokens: 16,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// One generation: a prompt and how to continue it.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Never empty; the caller checks ids against the vocabulary and the length against the context.
    pub prompt: Vec<u32>,
    /// How to choose tokens.
    pub sampling: SamplingParams,
}

/// A token with its log-probability under the model's raw distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token: u32,
    /// Natural logarithm of its probability (log-softmax of the raw logits).
    pub logprob: f32,
    /// 1 for the most likely token.
    pub rank: u32,
}

/// Log-probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionLogprobs {
    /// The token that stands at this position.
    pub chosen: TokenLogprob,
    /// The most likely tokens, best first.
    pub top: Vec<TokenLogprob>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// End of sequence, or a stop token (given) was sampled.
    Stop {
        /// The stop token id that ended it, `None` for the model's own end of sequence.
        token: Option<u32>,
    },
    /// `max_tokens` or the context length was reached.
    Length,
    /// The client went away or asked to stop.
    Abort,
}

/// What one request receives, in order: prompt log-probabilities (if asked for), tokens, one `Finished` or `Failed`.
#[derive(Debug)]
pub enum Event {
    /// One entry per prompt position; the first has no distribution.
    PromptLogprobs(Vec<Option<PositionLogprobs>>),
    /// The next token. A stop token is reported too; the text layer decides whether to show it.
    Token {
        /// Token id.
        token: u32,
        /// Present when asked for.
        logprobs: Option<PositionLogprobs>,
    },
    /// The last event of a successful request.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Prompt tokens that were found in the prefix cache.
        num_cached_tokens: usize,
    },
    /// The last event of a failed request; the engine itself goes on.
    Failed(EngineError),
}
