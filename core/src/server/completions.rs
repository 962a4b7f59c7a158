//! `POST /v1/completions`.

use std::mem::replace;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use super::app::App;
use super::backend::ServedModel;
use super::error::ApiError;
use super::extract::JsonBody;
use super::fields::Fields;
use super::generation::Delta;
use super::languages::{LanguageNames, Translatable};
use super::logprobs::{CompletionLogprobs, prompt_logprobs};
use super::middleware::RequestTag;
use super::prompt::{self, Lengths, Prompt, Source};
use super::request::{Common, Envelope, Job, logprob_count, note_unknown, off_thread};
use super::sse::{self, ChunkShape};
use crate::sched::PositionLogprobs;
use crate::translation::Translation;

const OBJECT: &str = "text_completion";
const DEFAULT_MAX_TOKENS: usize = 16;

pub(super) async fn handle(
    State(app): State<Arc<App>>,
    Extension(tag): Extension<RequestTag>,
    JsonBody(fields): JsonBody,
) -> Result<Response, ApiError> {
    let arrival = Instant::now();
    let model = Arc::clone(app.require_model()?);
    let log_requests = app.options.log_requests;
    let for_reading = Arc::clone(&model);
    let mut completion =
        off_thread(move || Completion::read(fields, &app, &for_reading, &tag.0, arrival)).await?;
    if log_requests {
        completion.job.log();
    }
    let choices = completion.job.start(&model)?;
    if let Some(usage) = completion.job.common.stream {
        return Ok(sse::respond(completion, usage, choices));
    }
    let (deltas, usage) = choices.collect().await?;
    let choices: Vec<_> =
        deltas.into_iter().enumerate().map(|(choice, delta)| completion.whole(choice, delta)).collect();
    let mut body = completion.chunk(&choices);
    body["usage"] = usage.total();
    Ok(Json(body).into_response())
}

/// A validated request and what its response has shown so far.
struct Completion {
    job: Job,
    /// The text of each prompt, if it is to be repeated.
    echo: Option<Vec<String>>,
    /// Most likely tokens per position, if asked for.
    logprobs: Option<usize>,
    /// The client asked for `prompt_logprobs` (and not just for echoed log-probabilities).
    wants_prompt_logprobs: bool,
    /// Per choice: characters of token text so far.
    offsets: Vec<usize>,
    /// Per choice: whether its first chunk has been made.
    opened: Vec<bool>,
}

impl Completion {
    fn read(
        mut fields: Fields,
        app: &App,
        model: &ServedModel,
        request_id: &str,
        arrival: Instant,
    ) -> Result<Self, ApiError> {
        let name = app.match_name(fields.string("model")?)?;
        let mut common = Common::read(&mut fields, model, app.options.max_logprobs)?;
        let echo = fields.boolean("echo")?.unwrap_or(false);
        let logprobs = logprob_count(&mut fields, "logprobs", app.options.max_logprobs)?;
        let wants_prompt_logprobs = common.sampling.prompt_logprobs.is_some();
        common.sampling.logprobs = logprobs;
        if echo {
            common.sampling.prompt_logprobs = common.sampling.prompt_logprobs.max(logprobs);
        }
        let scores_prompt = echo || wants_prompt_logprobs;
        let languages = LanguageNames::read(&mut fields)?;
        let translation = languages.translation(model)?;
        if translation.is_some() && scores_prompt {
            let message = "`echo` and `prompt_logprobs` have no place in a translation; leave them out";
            return Err(ApiError::invalid(if echo { "echo" } else { "prompt_logprobs" }, message));
        }
        let default_max_tokens = if translation.is_some() { usize::MAX } else { DEFAULT_MAX_TOKENS };
        let lengths = Lengths::read(&mut fields, model, i64::from(!scores_prompt), default_max_tokens)?;
        let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(true);
        let sources = prompt::read(&mut fields, model.vocab_size)?;
        note_unknown(&fields);

        let (prompts, texts): (Vec<_>, Vec<_>) = sources
            .into_iter()
            .map(|source| match translation {
                Some(translation) => translate(source, model, &lengths, (&languages, translation)),
                None => tokenize(source, model, &lengths, add_special_tokens),
            })
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .unzip();
        let echo = if echo { Some(echoed(&prompts, texts, &common, model)?) } else { None };
        let envelope = Envelope::new("cmpl", request_id, name);
        let job = Job { envelope, prompts, common, arrival }.check()?;
        let choices = job.num_choices();
        let logprobs = logprobs.map(|k| k as usize);
        let (offsets, opened) = (vec![0; choices], vec![false; choices]);
        Ok(Self { job, echo, logprobs, wants_prompt_logprobs, offsets, opened })
    }

    /// The choice of a response that is not streamed.
    fn whole(&mut self, choice: usize, mut delta: Delta) -> Value {
        let prompt_positions = delta.prompt_logprobs.take();
        let mut columns = CompletionLogprobs::default();
        if let Some(echo) = &self.echo {
            delta.text.insert_str(0, &echo[choice / self.job.common.n]);
            self.add_prompt(&mut columns, choice, prompt_positions.as_deref());
        }
        self.add_output(&mut columns, choice, &delta);
        let mut value = self.choice(choice, &delta, self.logprobs.map(|_| columns));
        if self.wants_prompt_logprobs {
            let names = &self.job.common.names;
            value["prompt_logprobs"] = prompt_positions.map_or(Value::Null, |p| prompt_logprobs(names, &p));
        }
        if self.job.common.return_token_ids {
            value["prompt_token_ids"] = json!(self.job.prompt_of(choice).tokens);
        }
        value
    }

    /// The chunk that repeats the prompt.
    fn echo_choice(
        &mut self,
        choice: usize,
        text: String,
        positions: Option<&[Option<PositionLogprobs>]>,
    ) -> Value {
        let mut columns = CompletionLogprobs::default();
        self.add_prompt(&mut columns, choice, positions);
        let delta = Delta { text, ..Delta::default() };
        self.choice(choice, &delta, self.logprobs.map(|_| columns))
    }

    fn choice(&self, choice: usize, delta: &Delta, logprobs: Option<CompletionLogprobs>) -> Value {
        let (finish_reason, stop_reason) = delta.reasons();
        let mut value = json!({
            "index": choice,
            "text": delta.text,
            "logprobs": logprobs.map(CompletionLogprobs::into_value),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        });
        if let Some(score) = delta.beam_score() {
            value["beam_score"] = json!(score);
        }
        if self.job.common.return_token_ids {
            value["token_ids"] = json!(delta.tokens);
        }
        value
    }

    fn add_prompt(
        &mut self,
        columns: &mut CompletionLogprobs,
        choice: usize,
        positions: Option<&[Option<PositionLogprobs>]>,
    ) {
        let (Some(num_top), Some(positions)) = (self.logprobs, positions) else { return };
        let (names, offset) = (&self.job.common.names, &mut self.offsets[choice]);
        let prompt = &self.job.prompts[choice / self.job.common.n];
        for (&token, position) in prompt.tokens.iter().zip(positions) {
            columns.push(names, token, position.as_ref(), num_top, offset);
        }
    }

    fn add_output(&mut self, columns: &mut CompletionLogprobs, choice: usize, delta: &Delta) {
        let Some(num_top) = self.logprobs else { return };
        let (names, offset) = (&self.job.common.names, &mut self.offsets[choice]);
        for (&token, position) in delta.tokens.iter().zip(&delta.logprobs) {
            columns.push(names, token, Some(position), num_top, offset);
        }
    }
}

impl ChunkShape for Completion {
    fn chunk(&self, choices: &[Value]) -> Value {
        self.job.envelope.wrap(OBJECT, choices)
    }

    fn chunks(&mut self, choice: usize, mut delta: Delta) -> Vec<Value> {
        let positions = delta.prompt_logprobs.take();
        let mut values = Vec::new();
        let is_first = !replace(&mut self.opened[choice], true);
        if is_first && let Some(echo) = &self.echo {
            let text = echo[choice / self.job.common.n].clone();
            values.push(self.echo_choice(choice, text, positions.as_deref()));
        }
        if positions.is_none() {
            let mut columns = CompletionLogprobs::default();
            self.add_output(&mut columns, choice, &delta);
            let columns = self.logprobs.filter(|_| !delta.logprobs.is_empty()).map(|_| columns);
            values.push(self.choice(choice, &delta, columns));
        }
        if is_first
            && self.job.common.return_token_ids
            && let Some(value) = values.first_mut()
        {
            value["prompt_token_ids"] = json!(self.job.prompt_of(choice).tokens);
        }
        values.into_iter().map(|value| self.chunk(&[value])).collect()
    }
}

/// A prompt with the text it came from, where that is still all of it.
fn tokenize(
    source: Source,
    model: &ServedModel,
    lengths: &Lengths,
    add_special_tokens: bool,
) -> Result<(Prompt, Option<String>), ApiError> {
    match source {
        Source::Tokens(tokens) => Ok((lengths.fit(tokens, model)?, None)),
        Source::Text(text) => {
            let tokens = prompt::require_text(model, "prompt")?.encode(&text, add_special_tokens)?;
            let prompt = lengths.fit(tokens, model)?;
            Ok((prompt, Some(text).filter(|_| lengths.truncate.is_none())))
        }
    }
}

/// A text to translate; token ids are those of a text, without languages.
fn translate(
    source: Source,
    model: &ServedModel,
    lengths: &Lengths,
    (languages, translation): (&LanguageNames, &Translation),
) -> Result<(Prompt, Option<String>), ApiError> {
    let translatable = match source {
        Source::Text(text) => languages.encode(model, translation, &text)?,
        Source::Tokens(tokens) => {
            let (source, _) = languages.source(translation, "")?;
            Translatable {
                source: translation.source(&tokens, source),
                start: translation.target_start(languages.target(translation)?),
            }
        }
    };
    Ok((lengths.fit_translation(translatable, model)?, None))
}

/// What `echo` shows: the client's own text, or the decoded tokens; nothing without a tokenizer.
fn echoed(
    prompts: &[Prompt],
    texts: Vec<Option<String>>,
    common: &Common,
    model: &ServedModel,
) -> Result<Vec<String>, ApiError> {
    let decode = |prompt: &Prompt| match &model.text {
        Some(text) => text.decode(&prompt.tokens, common.output.skip_special_tokens),
        None => Ok(String::new()),
    };
    let pairs = prompts.iter().zip(texts);
    Ok(pairs.map(|(prompt, text)| text.map_or_else(|| decode(prompt), Ok)).collect::<Result<_, _>>()?)
}
