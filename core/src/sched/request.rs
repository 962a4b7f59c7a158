//! What a client asks the engine for, and what the engine tells it back.

use std::sync::Arc;

use crate::error::EngineError;
use crate::exec::SequenceImages;
pub use crate::exec::sample::beam::{BeamParams, EarlyStopping, Hypothesis};
pub use crate::exec::sample::{PositionLogprobs, SamplingParams, TokenLogprob};

/// Identifies one running request inside one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One generation: a prompt and how to continue it.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// What a model with an encoder reads, whole, before the first step; `prompt` is then how the target starts: the
    /// decoder's start token and whatever is to follow it, such as a language. `None` for a decoder-only model.
    pub source: Option<Vec<u32>>,
    /// Never empty; the caller checks ids against the vocabulary and the length against the context.
    pub prompt: Vec<u32>,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// What the placeholder tokens of the prompt stand for, for a model with a vision tower.
    pub images: Option<Arc<SequenceImages>>,
    /// Beam search instead of sampling one token after the other; temperature and seed have no effect then.
    pub beams: Option<BeamParams>,
}

impl GenerateRequest {
    /// A request to a decoder-only model.
    #[must_use]
    pub fn new(prompt: Vec<u32>, sampling: SamplingParams) -> Self {
        Self { source: None, prompt, sampling, images: None, beams: None }
    }

    /// With a source, for a model with an encoder.
    #[must_use]
    pub fn with_source(self, source: Vec<u32>) -> Self {
        Self { source: Some(source), ..self }
    }

    /// With beam search.
    #[must_use]
    pub fn with_beams(self, beams: BeamParams) -> Self {
        Self { beams: Some(beams), ..self }
    }
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

/// What one request receives, in order: prompt log-probabilities (if asked for), tokens or hypotheses, one `Finished` or
/// `Failed`.
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
    /// What beam search found, best first; all at once, instead of tokens.
    Hypotheses(Vec<Hypothesis>),
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
