//! `POST /v1/chat/completions`.

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
use super::images;
use super::languages::LanguageNames;
use super::logprobs::{chat_entry, prompt_logprobs};
use super::messages;
use super::middleware::RequestTag;
use super::prompt::{Lengths, Prompt, require_text};
use super::request::{Common, Envelope, Job, logprob_count, note_unknown, off_thread};
use super::sse::{self, ChunkShape};
use super::text::Chat;
use crate::sched::PositionLogprobs;

pub(super) async fn handle(
    State(app): State<Arc<App>>,
    Extension(tag): Extension<RequestTag>,
    JsonBody(fields): JsonBody,
) -> Result<Response, ApiError> {
    let arrival = Instant::now();
    let model = Arc::clone(app.require_model()?);
    let log_requests = app.options.log_requests;
    let for_reading = Arc::clone(&model);
    let chat = off_thread(move || ChatCompletion::read(fields, &app, &for_reading, &tag.0, arrival)).await?;
    if log_requests {
        chat.job.log();
    }
    let choices = chat.job.start(&model)?;
    if let Some(usage) = chat.job.common.stream {
        return Ok(sse::respond(chat, usage, choices));
    }
    let (mut deltas, usage) = choices.collect().await?;
    let prompt_positions = deltas.first_mut().and_then(|delta| delta.prompt_logprobs.take());
    let choices: Vec<_> =
        deltas.iter().enumerate().map(|(choice, delta)| chat.whole(choice, delta)).collect();
    let mut body = chat.job.envelope.wrap("chat.completion", &choices);
    body["usage"] = usage.total();
    if let Some(positions) = prompt_positions {
        body["prompt_logprobs"] = prompt_logprobs(&chat.job.common.names, &positions);
    }
    if chat.job.common.return_token_ids {
        body["prompt_token_ids"] = json!(chat.job.prompt_of(0).tokens);
    }
    Ok(Json(body).into_response())
}

/// A validated request and what its response has shown so far.
struct ChatCompletion {
    job: Job,
    /// Most likely tokens per position, if log-probabilities were asked for.
    top_logprobs: Option<usize>,
    /// Per choice: whether its role has been sent.
    opened: Vec<bool>,
}

impl ChatCompletion {
    fn read(
        mut fields: Fields,
        app: &App,
        model: &ServedModel,
        request_id: &str,
        arrival: Instant,
    ) -> Result<Self, ApiError> {
        let name = app.match_name(fields.string("model")?)?;
        let mut common = Common::read(&mut fields, model, app.options.max_logprobs)?;
        if fields.boolean("echo")?.unwrap_or(false) {
            return Err(ApiError::unsupported("echo", "use /v1/completions"));
        }
        let top_logprobs = top_logprobs(&mut fields, app.options.max_logprobs)?;
        common.sampling.logprobs = top_logprobs;
        let lengths = Lengths::read(&mut fields, model, 1, usize::MAX)?;
        let languages = LanguageNames::read(&mut fields)?;
        let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(false);
        let (chat, parts) = messages::read(&mut fields, app)?;
        note_unknown(&fields);

        let prompts = vec![if let Some(translation) = languages.translation(model)? {
            let translatable = languages.encode(model, translation, last_words(&chat)?)?;
            lengths.fit_translation(translatable, model)?
        } else {
            let text = require_text(model, "messages")?;
            let tokens = text.encode(&text.render_chat(&chat)?, add_special_tokens)?;
            let (tokens, images) = images::place(tokens, &parts, model)?;
            if images.is_some() && lengths.truncate.is_some() {
                let message = "`truncate_prompt_tokens` cannot be combined with images";
                return Err(ApiError::invalid("truncate_prompt_tokens", message));
            }
            let prompt = lengths.fit(tokens, model).map_err(|error| error.about("messages"))?;
            Prompt { images, ..prompt }
        }];
        let envelope = Envelope::new("chatcmpl", request_id, name);
        let job = Job { envelope, prompts, common, arrival }.check()?;
        let opened = vec![false; job.num_choices()];
        Ok(Self { job, top_logprobs: top_logprobs.map(|k| k as usize), opened })
    }

    /// The choice of a response that is not streamed.
    fn whole(&self, choice: usize, delta: &Delta) -> Value {
        let message = json!({ "role": "assistant", "content": delta.text, "refusal": null });
        self.choice(choice, "message", &message, delta)
    }

    fn choice(&self, choice: usize, key: &str, message: &Value, delta: &Delta) -> Value {
        let (finish_reason, stop_reason) = delta.reasons();
        let mut value = json!({
            "index": choice,
            key: message,
            "logprobs": self.logprobs(&delta.logprobs),
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

    fn logprobs(&self, positions: &[PositionLogprobs]) -> Value {
        let Some(num_top) = self.top_logprobs else { return Value::Null };
        let names = &self.job.common.names;
        let entries: Value = positions.iter().map(|position| chat_entry(names, position, num_top)).collect();
        json!({ "content": entries, "refusal": null })
    }
}

impl ChunkShape for ChatCompletion {
    fn chunk(&self, choices: &[Value]) -> Value {
        self.job.envelope.wrap("chat.completion.chunk", choices)
    }

    fn chunks(&mut self, choice: usize, delta: Delta) -> Vec<Value> {
        let mut chunks = Vec::new();
        if !replace(&mut self.opened[choice], true) {
            let role = json!({ "role": "assistant", "content": "" });
            let value = json!({ "index": choice, "delta": role, "logprobs": null, "finish_reason": null });
            let mut chunk = self.chunk(&[value]);
            if self.job.common.return_token_ids {
                chunk["prompt_token_ids"] = json!(self.job.prompt_of(choice).tokens);
            }
            chunks.push(chunk);
        }
        let is_bare_finish = delta.finish.is_some() && delta.text.is_empty();
        let message = if is_bare_finish { json!({}) } else { json!({ "content": delta.text }) };
        chunks.push(self.chunk(&[self.choice(choice, "delta", &message, &delta)]));
        chunks
    }
}

/// What is to be translated: the last message.
fn last_words(chat: &Chat) -> Result<&str, ApiError> {
    let last = chat.messages.last().and_then(|message| message["content"].as_str());
    last.filter(|text| !text.trim().is_empty()).ok_or_else(|| {
        ApiError::invalid(
            "messages",
            "`messages`: expected text to translate in the last message, found none",
        )
    })
}

/// `logprobs: true` with `top_logprobs`: how many alternatives per position.
fn top_logprobs(fields: &mut Fields, max: u32) -> Result<Option<u32>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = logprob_count(fields, "top_logprobs", max)?;
    if top.is_some_and(|k| k > 0) && !wanted {
        return Err(ApiError::invalid(
            "top_logprobs",
            "`top_logprobs` is only allowed with `logprobs: true`",
        ));
    }
    Ok(wanted.then(|| top.unwrap_or(0)))
}
