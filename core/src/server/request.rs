//! What `/v1/completions` and `/v1/chat/completions` have in common: a validated request becomes running choices.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, unfold};
use serde_json::{Value, json};

use super::backend::ServedModel;
use super::error::ApiError;
use super::fields::{Fields, mismatch, string};
use super::generation::{Delta, Generation, OutputOptions, TokenNames};
use super::prompt::Prompt;
use super::text::{StreamOptions, Text};
use super::{beams, metrics, sampling, unsupported};
use crate::sched::{BeamParams, GenerateRequest, SamplingParams};

/// Most choices (prompts times `n`) of one HTTP request.
const MAX_CHOICES: usize = 1024;
/// Most stop strings of one request.
const MAX_STOP_STRINGS: usize = 64;

/// When and how usage is reported in a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamUsage {
    /// A last chunk with the totals.
    pub(super) include: bool,
    /// The running counts of its choice in every chunk.
    pub(super) continuous: bool,
}

/// The fields that both endpoints share.
pub(super) struct Common {
    pub(super) n: usize,
    pub(super) sampling: SamplingParams,
    pub(super) beams: Option<BeamParams>,
    pub(super) output: StreamOptions,
    pub(super) stream: Option<StreamUsage>,
    pub(super) return_token_ids: bool,
    pub(super) names: TokenNames,
}

impl Common {
    pub(super) fn read(
        fields: &mut Fields,
        model: &ServedModel,
        max_logprobs: u32,
    ) -> Result<Self, ApiError> {
        unsupported::refuse(fields)?;
        let n = sampling::count(fields, "n", 1)?.unwrap_or(1);
        let default_num_beams = model.translation.as_ref().map_or(1, |t| t.default_num_beams);
        let beams = beams::read(fields, n, default_num_beams)?;
        let mut sampling = sampling::read(fields, &model.defaults, model.vocab_size)?;
        sampling.prompt_logprobs = logprob_count(fields, "prompt_logprobs", max_logprobs)?;
        let output = StreamOptions {
            skip_special_tokens: fields.boolean("skip_special_tokens")?.unwrap_or(true),
            stop: stop_strings(fields)?,
            include_stop_str_in_output: fields.boolean("include_stop_str_in_output")?.unwrap_or(false),
            min_tokens: sampling.min_tokens,
        };
        if !output.stop.is_empty() {
            super::prompt::require_text(model, "stop")?;
        }
        let stream = stream_usage(fields)?;
        if stream.is_some() && sampling.prompt_logprobs.is_some() {
            let message = "`prompt_logprobs` cannot be combined with `stream`";
            return Err(ApiError::invalid("prompt_logprobs", message));
        }
        let return_token_ids = fields.boolean("return_token_ids")?.unwrap_or(false);
        let as_ids = fields.boolean("return_tokens_as_token_ids")?.unwrap_or(false);
        let names = TokenNames { text: model.text.clone(), as_ids };
        Ok(Self { n, sampling, beams, output, stream, return_token_ids, names })
    }
}

/// An integer from 0 to `--max-logprobs`.
pub(super) fn logprob_count(fields: &mut Fields, name: &str, max: u32) -> Result<Option<u32>, ApiError> {
    match fields.integer(name)? {
        None => Ok(None),
        Some(k) => match u32::try_from(k) {
            Ok(k) if k <= max => Ok(Some(k)),
            _ => {
                let message =
                    format!("`{name}`: expected an integer from 0 to {max} (--max-logprobs), found {k}");
                Err(ApiError::invalid(name, message))
            }
        },
    }
}

fn stop_strings(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stop = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(i, item)| string(&format!("stop[{i}]"), item))
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(mismatch("stop", "a string or an array of strings", &other)),
    };
    if stop.iter().any(String::is_empty) {
        return Err(ApiError::invalid("stop", "`stop`: expected non-empty strings, found an empty one"));
    }
    if stop.len() > MAX_STOP_STRINGS {
        let message = format!("`stop`: expected at most {MAX_STOP_STRINGS} strings, found {}", stop.len());
        return Err(ApiError::invalid("stop", message));
    }
    Ok(stop)
}

fn stream_usage(fields: &mut Fields) -> Result<Option<StreamUsage>, ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    match fields.take("stream_options") {
        None => Ok(stream.then(StreamUsage::default)),
        Some(_) if !stream => {
            let message = "`stream_options` is only allowed with `stream: true`";
            Err(ApiError::invalid("stream_options", message))
        }
        Some(options) => {
            let mut options = Fields::of("stream_options", options)?;
            let include = options.boolean("include_usage")?.unwrap_or(false);
            let continuous = options.boolean("continuous_usage_stats")?.unwrap_or(false);
            Ok(Some(StreamUsage { include, continuous: include && continuous }))
        }
    }
}

/// Counts and logs the names that nobody took.
pub(super) fn note_unknown(fields: &Fields) {
    let unknown: Vec<_> = fields.unknown().collect();
    if !unknown.is_empty() {
        metrics::count_unknown_fields(unknown.len());
        tracing::debug!(fields = ?unknown, "unknown request fields ignored");
    }
}

/// Runs `read` where it may take long: tokenizing a large prompt must not hold up other requests.
pub(super) async fn off_thread<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(read)
        .await
        .unwrap_or_else(|error| Err(ApiError::internal(format!("reading the request failed: {error}"))))
}

/// What every response and chunk of one request repeats.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    /// `cmpl-…` or `chatcmpl-…`.
    pub(super) id: String,
    /// Unix time in seconds.
    pub(super) created: u64,
    /// The model name that the client used.
    pub(super) model: String,
}

impl Envelope {
    pub(super) fn new(prefix: &str, request_id: &str, model: String) -> Self {
        Self { id: format!("{prefix}-{request_id}"), created: unix_time(), model }
    }

    /// A response or chunk with these choices.
    pub(super) fn wrap(&self, object: &str, choices: &[Value]) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// Seconds since 1970.
pub(super) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// A validated request: `prompts.len() * common.n` choices.
pub(super) struct Job {
    pub(super) envelope: Envelope,
    pub(super) prompts: Vec<Prompt>,
    pub(super) common: Common,
    pub(super) arrival: Instant,
}

impl Job {
    /// Logs sizes and parameters, never text.
    pub(super) fn log(&self) {
        let prompt_tokens: usize = self.prompts.iter().map(Prompt::num_tokens).sum();
        tracing::info!(
            id = %self.envelope.id,
            prompts = self.prompts.len(),
            prompt_tokens,
            n = self.common.n,
            max_tokens = self.prompts.iter().map(|prompt| prompt.max_tokens).max(),
            stream = self.common.stream.is_some(),
            temperature = self.common.sampling.temperature,
            "request"
        );
    }

    /// Checks what only the whole request shows.
    pub(super) fn check(self) -> Result<Self, ApiError> {
        let choices = self.prompts.len().saturating_mul(self.common.n);
        if choices > MAX_CHOICES {
            let message = format!(
                "expected at most {MAX_CHOICES} choices in one request, found {} prompts with n = {}",
                self.prompts.len(),
                self.common.n
            );
            return Err(ApiError::invalid("n", message));
        }
        let min_tokens = self.common.sampling.min_tokens;
        if let Some(prompt) = self.prompts.iter().find(|prompt| min_tokens > prompt.max_tokens) {
            let message = format!(
                "`min_tokens`: expected at most max_tokens ({}), found {min_tokens}",
                prompt.max_tokens
            );
            return Err(ApiError::invalid("min_tokens", message));
        }
        Ok(self)
    }

    /// The prompt of a choice: choice `p * n + i` is the `i`-th answer to prompt `p`.
    pub(super) fn prompt_of(&self, choice: usize) -> &Prompt {
        &self.prompts[choice / self.common.n]
    }

    pub(super) fn num_choices(&self) -> usize {
        self.prompts.len() * self.common.n
    }

    /// Submits every choice.
    pub(super) fn start(&self, model: &ServedModel) -> Result<Choices, ApiError> {
        let longest = self.prompts.iter().map(|prompt| prompt.max_tokens).max();
        metrics::record_params(self.common.n, longest.unwrap_or_default());
        let terminators = self.terminators(model);
        let streams = if self.common.beams.is_some() {
            self.searches(model, &terminators)?
        } else {
            self.generations(model, &terminators)?
        };
        let prompt_tokens = self.prompts.iter().map(Prompt::num_tokens).collect();
        let usage = Usage::new(prompt_tokens, self.common.n);
        Ok(Choices { streams, usage })
    }

    /// One generation per choice.
    fn generations(&self, model: &ServedModel, terminators: &Arc<[u32]>) -> Result<Streams, ApiError> {
        let generations = (0..self.num_choices())
            .map(|choice| self.generation(model, choice, terminators))
            .collect::<Result<Vec<_>, _>>()?;
        let streams = generations.into_iter().enumerate().map(|(choice, generation)| {
            unfold(generation, |mut generation| async move { Some((generation.next().await?, generation)) })
                .map(move |delta| (choice, delta.map_err(ApiError::from)))
                .boxed()
        });
        Ok(streams.collect())
    }

    pub(super) fn request(&self, prompt: &Prompt) -> GenerateRequest {
        let mut sampling = self.common.sampling.clone();
        sampling.max_tokens = prompt.max_tokens;
        let request = GenerateRequest::new(prompt.tokens.clone(), sampling);
        GenerateRequest {
            source: prompt.source.clone(),
            images: prompt.images.clone(),
            beams: self.common.beams,
            ..request
        }
    }

    fn terminators(&self, model: &ServedModel) -> Arc<[u32]> {
        let sampling = &self.common.sampling;
        let eos: &[u32] = if sampling.ignore_eos { &[] } else { &model.eos_token_ids };
        sampling.stop_token_ids.iter().chain(eos).copied().collect()
    }

    fn generation(
        &self,
        model: &ServedModel,
        choice: usize,
        terminators: &Arc<[u32]>,
    ) -> Result<Generation, ApiError> {
        let prompt = self.prompt_of(choice);
        let mut request = self.request(prompt);
        let sibling = (choice % self.common.n) as u64;
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(sibling));
        let options = output_options(model.text.as_deref(), &prompt.tokens, &self.common.output, terminators);
        Ok(Generation::start(model.engine.as_ref(), request, options, self.arrival)?)
    }
}

/// How to read the engine's tokens for one choice.
pub(super) fn output_options(
    text: Option<&dyn Text>,
    prompt: &[u32],
    output: &StreamOptions,
    terminators: &Arc<[u32]>,
) -> OutputOptions {
    OutputOptions {
        terminators: terminators.clone(),
        include_terminator: output.include_stop_str_in_output,
        text: text.map(|text| text.stream(prompt, output)),
    }
}

/// The deltas of all choices.
pub(super) type Streams = SelectAll<BoxStream<'static, (usize, Result<Delta, ApiError>)>>;

/// The running choices of one request, and what they have used so far. Dropping it aborts them all.
pub(super) struct Choices {
    streams: Streams,
    pub(super) usage: Usage,
}

impl Choices {
    /// The next delta of any choice; `None` when all have finished.
    pub(super) async fn next(&mut self) -> Option<Result<(usize, Delta), ApiError>> {
        let Some((choice, delta)) = self.streams.next().await else {
            metrics::record_longest_output(self.usage.longest_output());
            return None;
        };
        Some(delta.map(|delta| {
            self.usage.count(choice, &delta);
            (choice, delta)
        }))
    }
}

impl Choices {
    /// Waits for all choices; one delta per choice holds everything.
    pub(super) async fn collect(mut self) -> Result<(Vec<Delta>, Usage), ApiError> {
        let mut collected: Vec<Delta> = Vec::new();
        collected.resize_with(self.usage.completion_tokens.len(), Delta::default);
        while let Some(delta) = self.next().await {
            let (choice, delta) = delta?;
            collected[choice].append(delta);
        }
        Ok((collected, self.usage))
    }
}

/// Token counts of one request.
#[derive(Debug)]
pub(super) struct Usage {
    n: usize,
    prompt_tokens: Vec<usize>,
    cached_tokens: Vec<usize>,
    completion_tokens: Vec<usize>,
}

impl Usage {
    fn new(prompt_tokens: Vec<usize>, n: usize) -> Self {
        let prompts = prompt_tokens.len();
        Self { n, prompt_tokens, cached_tokens: vec![0; prompts], completion_tokens: vec![0; prompts * n] }
    }

    fn count(&mut self, choice: usize, delta: &Delta) {
        self.completion_tokens[choice] += delta.tokens.len();
        if let Some(finish) = &delta.finish
            && choice.is_multiple_of(self.n)
        {
            self.cached_tokens[choice / self.n] = finish.num_cached_tokens;
        }
    }

    fn longest_output(&self) -> usize {
        self.completion_tokens.iter().copied().max().unwrap_or_default()
    }

    /// Each prompt counts once, however many choices answer it.
    pub(super) fn total(&self) -> Value {
        let cached = self.cached_tokens.iter().sum();
        usage(self.prompt_tokens.iter().sum(), self.completion_tokens.iter().sum(), cached)
    }

    /// The counts of one choice so far.
    pub(super) fn of_choice(&self, choice: usize) -> Value {
        let prompt = choice / self.n;
        usage(self.prompt_tokens[prompt], self.completion_tokens[choice], self.cached_tokens[prompt])
    }
}

fn usage(prompt: usize, completion: usize, cached: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}
