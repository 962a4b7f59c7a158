//! One generation as the server sees it: engine events in, text with its tokens and log-probabilities out.
//!
//! Dropping a [`Generation`] aborts it in the engine.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::backend::{Backend, EventStream};
use super::metrics::Timer;
use super::text::{Text, TextDelta, TextStream};
use crate::error::EngineError;
use crate::sched::{Event, FinishReason, GenerateRequest, PositionLogprobs};

/// What has become known since the last delta.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// Output text; empty without a tokenizer.
    pub(crate) text: String,
    /// Output tokens, a stop token included.
    pub(crate) tokens: Vec<u32>,
    /// One entry per token, if asked for.
    pub(crate) logprobs: Vec<PositionLogprobs>,
    /// Once, before the first token, if asked for.
    pub(crate) prompt_logprobs: Option<Vec<Option<PositionLogprobs>>>,
    /// In the last delta.
    pub(crate) finish: Option<Finish>,
}

impl Delta {
    /// Adds what came after it.
    pub(super) fn append(&mut self, later: Self) {
        self.text.push_str(&later.text);
        self.tokens.extend(later.tokens);
        self.logprobs.extend(later.logprobs);
        self.prompt_logprobs = self.prompt_logprobs.take().or(later.prompt_logprobs);
        self.finish = self.finish.take().or(later.finish);
    }

    /// Adds text; a stop string in it is the end.
    pub(super) fn add_text(&mut self, piece: TextDelta) {
        self.text.push_str(&piece.text);
        if let Some(stop) = piece.stopped {
            let stop_reason = json!(stop);
            self.finish =
                Some(Finish { reason: "stop", stop_reason, num_cached_tokens: 0, beam_score: None });
        }
    }

    /// Score of the hypothesis, in the last delta of a beam search.
    pub(super) fn beam_score(&self) -> Option<f32> {
        self.finish.as_ref()?.beam_score
    }

    /// `finish_reason` and `stop_reason` of a choice; null before the end.
    pub(super) fn reasons(&self) -> (Option<&'static str>, Value) {
        match &self.finish {
            Some(finish) => (Some(finish.reason), finish.stop_reason.clone()),
            None => (None, Value::Null),
        }
    }
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finish {
    /// `stop`, `length` or `abort`.
    pub(crate) reason: &'static str,
    /// The stop string or stop token that ended it; null for the model's own end.
    pub(crate) stop_reason: Value,
    /// Prompt tokens found in the prefix cache.
    pub(crate) num_cached_tokens: usize,
    /// Score of the hypothesis, for beam search.
    pub(crate) beam_score: Option<f32>,
}

/// How to read the engine's tokens.
pub(crate) struct OutputOptions {
    /// Tokens that end the generation when they are sampled; not shown.
    pub(crate) terminators: Arc<[u32]>,
    /// Show them all the same.
    pub(crate) include_terminator: bool,
    /// Turns tokens into text; `None` leaves the text empty.
    pub(crate) text: Option<Box<dyn TextStream>>,
}

/// A running generation.
pub(crate) struct Generation {
    events: EventStream,
    options: OutputOptions,
    /// A terminator, until the engine says whether it ended the generation.
    held: Option<(u32, Option<PositionLogprobs>)>,
    timer: Timer,
    done: bool,
}

impl Generation {
    /// Submits `request`; `arrival` is when the client's request came in.
    pub(crate) fn start(
        engine: &dyn Backend,
        request: GenerateRequest,
        options: OutputOptions,
        arrival: Instant,
    ) -> Result<Self, EngineError> {
        let timer = Timer::start(arrival, request.prompt.len());
        let events = engine.submit(request)?;
        Ok(Self { events, options, held: None, timer, done: false })
    }

    /// The next delta; `None` after the one with `finish` and after an error.
    pub(crate) async fn next(&mut self) -> Option<Result<Delta, EngineError>> {
        while !self.done {
            let delta = match self.events.next().await {
                Some(event) => self.read(event),
                None => Err(EngineError::Unavailable(
                    "the engine stopped before the request was finished".to_owned(),
                )),
            };
            match delta {
                Ok(None) => {}
                Ok(Some(delta)) => {
                    if let Some(finish) = &delta.finish {
                        self.end(finish.reason);
                    }
                    return Some(Ok(delta));
                }
                Err(error) => {
                    self.end("error");
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// Tells the engine to stop by letting go of its events.
    fn end(&mut self, reason: &'static str) {
        self.timer.finish(reason);
        self.done = true;
        self.events = Box::pin(futures_util::stream::empty());
    }

    fn read(&mut self, event: Event) -> Result<Option<Delta>, EngineError> {
        match event {
            Event::PromptLogprobs(positions) => {
                Ok(Some(Delta { prompt_logprobs: Some(positions), ..Delta::default() }))
            }
            Event::Token { token, logprobs } => {
                self.timer.token();
                let mut delta = Delta::default();
                self.release_held(&mut delta)?;
                if delta.finish.is_none() {
                    if self.options.terminators.contains(&token) {
                        self.held = Some((token, logprobs));
                    } else {
                        self.show(&mut delta, token, logprobs)?;
                    }
                }
                Ok((!delta.tokens.is_empty()).then_some(delta))
            }
            Event::Finished { reason, num_cached_tokens } => {
                self.finished(reason, num_cached_tokens).map(Some)
            }
            Event::Hypotheses(_) => {
                Err(EngineError::Internal("hypotheses for a request without beams".to_owned()))
            }
            Event::Failed(error) => Err(error),
        }
    }

    fn finished(&mut self, reason: FinishReason, num_cached_tokens: usize) -> Result<Delta, EngineError> {
        let mut delta = Delta::default();
        match self.held.take() {
            Some((token, logprobs)) if matches!(reason, FinishReason::Stop { .. }) => {
                if self.options.include_terminator {
                    self.show(&mut delta, token, logprobs)?;
                } else {
                    delta.tokens.push(token);
                    delta.logprobs.extend(logprobs);
                }
            }
            held => self.held = held,
        }
        self.release_held(&mut delta)?;
        if let (None, Some(stream)) = (&delta.finish, &mut self.options.text) {
            let rest = stream.finish()?;
            delta.add_text(rest);
        }
        let (reason, stop_reason) = match reason {
            FinishReason::Stop { token } => ("stop", json!(token)),
            FinishReason::Length => ("length", Value::Null),
            FinishReason::Abort => ("abort", Value::Null),
        };
        let finish =
            delta.finish.get_or_insert(Finish { reason, stop_reason, num_cached_tokens, beam_score: None });
        finish.num_cached_tokens = num_cached_tokens;
        Ok(delta)
    }

    fn release_held(&mut self, delta: &mut Delta) -> Result<(), EngineError> {
        match self.held.take() {
            Some((token, logprobs)) => self.show(delta, token, logprobs),
            None => Ok(()),
        }
    }

    fn show(
        &mut self,
        delta: &mut Delta,
        token: u32,
        logprobs: Option<PositionLogprobs>,
    ) -> Result<(), EngineError> {
        delta.tokens.push(token);
        delta.logprobs.extend(logprobs);
        if let Some(stream) = &mut self.options.text {
            let piece = stream.push(token)?;
            delta.add_text(piece);
        }
        Ok(())
    }
}

/// Names single tokens in log-probabilities.
#[derive(Clone)]
pub(super) struct TokenNames {
    pub(super) text: Option<Arc<dyn Text>>,
    /// `token_id:N` instead of text.
    pub(super) as_ids: bool,
}

impl TokenNames {
    /// The token's text, with U+FFFD for parts of characters; `token_id:N` without a tokenizer.
    pub(super) fn name(&self, token: u32) -> String {
        match &self.text {
            Some(text) if !self.as_ids => String::from_utf8_lossy(&text.token_bytes(token)).into_owned(),
            _ => format!("token_id:{token}"),
        }
    }

    /// The token's bytes, if there is a tokenizer.
    pub(super) fn bytes(&self, token: u32) -> Option<Vec<u8>> {
        self.text.as_ref().map(|text| text.token_bytes(token))
    }
}
