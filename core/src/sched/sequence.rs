//! One request on its way: its tokens, what is computed of them, and what its client is still to receive.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::error::EngineError;
use crate::exec::sample::{Sampler, SamplingState};
use crate::exec::{Logits, SequenceImages};
use crate::kv::BlockTable;
use crate::speculative::Verification;

use super::beams::Beams;
use super::drafting::Drafting;
use super::engine::InFlight;
use super::plan::{Phase, Scheduled};
use super::request::{Event, FinishReason, PositionLogprobs, RequestId};

/// Prompt log-probabilities of one request. Rows are collected in order, over as many chunks as it takes.
#[derive(Debug)]
pub(super) enum PromptLogprobs {
    /// Not asked for, or delivered.
    Done,
    /// Entry `p` is known for `p < entries.len()`.
    Collecting { num_top: u32, entries: Vec<Option<PositionLogprobs>> },
}

/// When things happened to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    pub(super) submitted: Instant,
    pub(super) scheduled: Option<Instant>,
    pub(super) first_token: Option<Instant>,
}

/// What ends a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) eos_token_ids: Vec<u32>,
    /// Prompt and output together.
    pub(super) max_len: usize,
}

/// What a model with an encoder reads, and the pages for what its decoder sees of it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) token_ids: Arc<[u32]>,
    pub(super) table: BlockTable,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: RequestId,
    pub(super) source: Option<Source>,
    pub(super) images: Option<Arc<SequenceImages>>,
    /// Prompt and output.
    pub(super) tokens: Vec<u32>,
    pub(super) num_prompt: usize,
    /// Tokens whose KV and state are in place.
    pub(super) num_computed: usize,
    pub(super) table: BlockTable,
    /// For beam search: what follows the prompt is kept there.
    pub(super) beams: Option<Beams>,
    pub(super) sampling: SamplingState,
    pub(super) drafting: Drafting,
    pub(super) prompt_logprobs: PromptLogprobs,
    /// Prompt tokens that the first admission found in the prefix cache.
    pub(super) num_cached_tokens: Option<usize>,
    pub(super) timeline: Timeline,
    pub(super) events: UnboundedSender<Event>,
    /// Counts the request as in flight for as long as the sequence exists.
    pub(super) _in_flight: InFlight,
}

impl Sequence {
    pub(super) fn new(
        id: RequestId,
        (source, prompt): (Option<Vec<u32>>, Vec<u32>),
        sampling: SamplingState,
        events: UnboundedSender<Event>,
        in_flight: InFlight,
    ) -> Self {
        let prompt_logprobs = match sampling.params().prompt_logprobs {
            None => PromptLogprobs::Done,
            // No token before the first predicts it.
            Some(num_top) => PromptLogprobs::Collecting { num_top, entries: vec![None] },
        };
        let source = source.map(|ids| Source { token_ids: ids.into(), table: BlockTable::default() });
        Self {
            id,
            source,
            images: None,
            num_prompt: prompt.len(),
            tokens: prompt,
            num_computed: 0,
            table: BlockTable::default(),
            beams: None,
            sampling,
            drafting: Drafting::default(),
            prompt_logprobs,
            num_cached_tokens: None,
            timeline: Timeline { submitted: Instant::now(), scheduled: None, first_token: None },
            events,
            _in_flight: in_flight,
        }
    }

    /// With what its placeholder tokens stand for.
    pub(super) fn with_images(self, images: Option<Arc<SequenceImages>>) -> Self {
        let Some(images) = images else { return self };
        Self { table: BlockTable::with_media(images.media.clone()), images: Some(images), ..self }
    }

    /// Known tokens that are not computed; at least 1 between steps, unless beams run.
    pub(super) fn num_pending(&self) -> usize {
        self.tokens.len() - self.num_computed
    }

    /// Rows that it takes of the next step while it decodes, drafts aside; 0 while its prompt is computed.
    pub(super) fn num_decode_rows(&self) -> usize {
        match &self.beams {
            Some(beams) if beams.are_running() => beams.width(),
            _ => usize::from(self.num_pending() == 1),
        }
    }

    /// Sequences of a step that it can become.
    pub(super) fn width(&self) -> usize {
        self.beams.as_ref().map_or(1, Beams::width)
    }

    /// Tokens of its source.
    pub(super) fn source_len(&self) -> usize {
        self.source.as_ref().map_or(0, |source| source.token_ids.len())
    }

    /// Source tokens that the next step has to encode first.
    pub(super) fn num_to_encode(&self) -> usize {
        if self.num_computed == 0 { self.source_len() } else { 0 }
    }

    /// Whether the prompt's own log-probabilities are still incomplete.
    pub(super) fn collects_prompt_logprobs(&self) -> bool {
        matches!(self.prompt_logprobs, PromptLogprobs::Collecting { .. })
    }

    /// Positions below `end` whose logits the prompt log-probabilities still need. The row at position `p` judges
    /// the token at `p + 1`.
    pub(super) fn prompt_rows(&self, end: usize) -> Range<usize> {
        match &self.prompt_logprobs {
            PromptLogprobs::Done => 0..0,
            PromptLogprobs::Collecting { entries, .. } => {
                let first = (entries.len() - 1).max(self.num_computed);
                first..end.min(self.num_prompt - 1).max(first)
            }
        }
    }

    /// Takes in the logits of a computed step: reports log-probabilities and samples where the phase says so, a token more
    /// for each draft that is right. `Some` when the sequence is at its end.
    pub(super) fn advance(
        &mut self,
        scheduled: &Scheduled,
        logits: &Logits,
        sampler: &mut Sampler,
        limits: &Limits,
    ) -> Result<Option<FinishReason>, EngineError> {
        // The step has brought recurrent state up to here.
        self.drafting.num_accepted = 0;
        let num_sampling_rows = match scheduled.phase {
            Phase::Prefill | Phase::Beams => 0,
            Phase::Decode => 1 + scheduled.num_drafts,
        };
        let first_sampling_row = scheduled.logits.end - num_sampling_rows;
        let prompt_rows = scheduled.logits.start..first_sampling_row;
        self.collect_prompt_logprobs(prompt_rows, logits, sampler)?;
        match scheduled.phase {
            Phase::Prefill | Phase::Beams => Ok(None),
            Phase::Decode if self.sampling.params().max_tokens == 0 => Ok(Some(FinishReason::Length)),
            Phase::Decode => {
                let drafts = std::mem::take(&mut self.drafting.tokens);
                let mut verification = Verification::new(&drafts);
                let outcome = (first_sampling_row..scheduled.logits.end)
                    .find_map(|row| self.choose(logits.row(row), &mut verification, sampler, limits));
                self.drafting.num_accepted = verification.num_accepted();
                self.drafting.reuse(drafts);
                outcome.unwrap_or(Ok(None))
            }
        }
    }

    /// Chooses the next token from a row of logits. `None` if the row after it is to choose another.
    fn choose(
        &mut self,
        row: &[f32],
        verification: &mut Verification<'_>,
        sampler: &mut Sampler,
        limits: &Limits,
    ) -> Option<Result<Option<FinishReason>, EngineError>> {
        let sampled = match sampler.sample(row, &self.sampling, self.tokens.len()) {
            Ok(sampled) => sampled,
            Err(error) => return Some(Err(error.into())),
        };
        self.tokens.push(sampled.token);
        self.sampling.record(sampled.token);
        self.send(Event::Token { token: sampled.token, logprobs: sampled.logprobs });
        let goes_on = verification.accept(sampled.token);
        match self.finish_reason(sampled.token, limits) {
            None if goes_on => None,
            outcome => Some(Ok(outcome)),
        }
    }

    /// The client may be gone: its abort is on the way then.
    pub(super) fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    fn collect_prompt_logprobs(
        &mut self,
        rows: Range<usize>,
        logits: &Logits,
        sampler: &mut Sampler,
    ) -> Result<(), EngineError> {
        let PromptLogprobs::Collecting { num_top, entries } = &mut self.prompt_logprobs else {
            return Ok(());
        };
        for row in rows {
            let position = entries.len();
            let token = self.tokens[position];
            entries.push(Some(sampler.logprobs(logits.row(row), token, *num_top, position)?));
        }
        if entries.len() == self.num_prompt {
            let event = Event::PromptLogprobs(std::mem::take(entries));
            self.prompt_logprobs = PromptLogprobs::Done;
            self.send(event);
        }
        Ok(())
    }

    fn finish_reason(&self, last: u32, limits: &Limits) -> Option<FinishReason> {
        let params = self.sampling.params();
        if !params.ignore_eos && limits.eos_token_ids.contains(&last) {
            return Some(FinishReason::Stop { token: None });
        }
        if params.stop_token_ids.contains(&last) {
            return Some(FinishReason::Stop { token: Some(last) });
        }
        let is_full = self.sampling.num_output() >= params.max_tokens || self.tokens.len() >= limits.max_len;
        is_full.then_some(FinishReason::Length)
    }
}
