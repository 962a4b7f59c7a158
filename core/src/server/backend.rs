//! What the server needs from an engine and from a model, as two traits and a struct.
//!
//! The engine's handle implements [`Backend`]; tests implement it with scripted events.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;

use super::sampling::SamplingDefaults;
use super::text::Text;
use crate::error::EngineError;
use crate::images::ImageProcessor;
use crate::sched::{Event, GenerateRequest};
use crate::speculative::DraftStats;
use crate::translation::Translation;

/// The events of one generation. Dropping it aborts the generation.
pub type EventStream = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// A running engine.
pub trait Backend: Send + Sync {
    /// Queues a request; never blocks.
    fn submit(&self, request: GenerateRequest) -> Result<EventStream, EngineError>;
    /// What the engine is doing now.
    fn snapshot(&self) -> Snapshot;
    /// Refuses new requests from now on; running ones go on.
    fn drain(&self);
    /// Resolves when nothing runs or waits any more.
    fn drained(&self) -> BoxFuture<'_, ()>;
}

/// The state of an engine at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Sequences in the current step.
    pub running: usize,
    /// Sequences waiting for room.
    pub waiting: usize,
    /// Share of KV pages in use, 0 to 1.
    pub kv_usage: f64,
    /// Time since the engine last finished a step or became idle.
    pub since_progress: Duration,
    /// Pages of the KV cache.
    pub num_blocks: usize,
    /// Tokens per page.
    pub block_size: usize,
    /// What speculative decoding has come to since the start.
    pub drafts: DraftStats,
    /// New requests are refused.
    pub draining: bool,
    /// The engine can still run steps.
    pub healthy: bool,
}

impl Snapshot {
    /// Work is pending and no step has finished for `limit`.
    #[must_use]
    pub fn is_stuck(&self, limit: Duration) -> bool {
        self.running + self.waiting > 0 && self.since_progress >= limit
    }
}

/// A loaded model, ready to serve.
#[derive(Clone)]
pub struct ServedModel {
    /// Runs it.
    pub engine: Arc<dyn Backend>,
    /// Its tokenizer and chat template; `None` serves token ids only.
    pub text: Option<Arc<dyn Text>>,
    /// Makes patches of pictures; `None` for a model that takes text only.
    pub images: Option<ImageProcessor>,
    /// How it translates; nothing for a model that does not.
    pub translation: Option<Arc<Translation>>,
    /// Where it was loaded from, as given by the user.
    pub root: String,
    /// Longest context in tokens.
    pub max_model_len: usize,
    /// Bytes of weights that every step reads.
    pub weight_bytes_per_step: usize,
    /// Ids from this one on are not tokens.
    pub vocab_size: usize,
    /// The model's own end-of-sequence tokens.
    pub eos_token_ids: Vec<u32>,
    /// Sampling defaults of the model (`generation_config.json` and overrides).
    pub defaults: SamplingDefaults,
}
