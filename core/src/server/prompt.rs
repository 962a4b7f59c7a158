//! Prompts: text or token ids, truncation, and the context length.

use std::sync::Arc;

use serde_json::Value;

use super::backend::ServedModel;
use super::error::ApiError;
use super::fields::{Fields, mismatch, string};
use super::languages::Translatable;
use super::sampling::{count, tokens};
use super::text::Text;
use crate::sched::SequenceImages;

/// One prompt, ready for the engine.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    /// Never empty, shorter than the context.
    pub(super) tokens: Vec<u32>,
    /// What an encoder reads, for a model that has one.
    pub(super) source: Option<Vec<u32>>,
    /// Most tokens to generate; 0 only scores the prompt.
    pub(super) max_tokens: usize,
    /// What placeholder tokens stand for.
    pub(super) images: Option<Arc<SequenceImages>>,
}

impl Prompt {
    /// Tokens that the model reads before it writes.
    pub(super) fn num_tokens(&self) -> usize {
        self.tokens.len() + self.source.as_ref().map_or(0, Vec::len)
    }
}

/// A prompt as the client wrote it.
pub(super) enum Source {
    Text(String),
    Tokens(Vec<u32>),
}

/// Limits on prompt and output of one request.
pub(super) struct Lengths {
    /// `max_tokens` as given.
    pub(super) max_tokens: Option<usize>,
    /// Used without `max_tokens`; never beyond the context.
    pub(super) default_max_tokens: usize,
    /// Keep only this many tokens from the end.
    pub(super) truncate: Option<usize>,
}

impl Lengths {
    /// Reads `max_completion_tokens`, `max_tokens` (the newer name wins) and `truncate_prompt_tokens`.
    pub(super) fn read(
        fields: &mut Fields,
        model: &ServedModel,
        least_max_tokens: i64,
        default_max_tokens: usize,
    ) -> Result<Self, ApiError> {
        let newer = count(fields, "max_completion_tokens", least_max_tokens)?;
        let older = count(fields, "max_tokens", least_max_tokens)?;
        let default_max_tokens = model.defaults.max_new_tokens.unwrap_or(default_max_tokens);
        Ok(Self { max_tokens: newer.or(older), default_max_tokens, truncate: truncation(fields, model)? })
    }

    /// Truncates `tokens` and finds room for the output.
    pub(super) fn fit(&self, mut tokens: Vec<u32>, model: &ServedModel) -> Result<Prompt, ApiError> {
        if let Some(keep) = self.truncate {
            tokens.drain(..tokens.len().saturating_sub(keep));
        }
        if tokens.is_empty() {
            return Err(ApiError::invalid("prompt", "the prompt is empty; send at least one token"));
        }
        let room = model.max_model_len.saturating_sub(tokens.len());
        let max_tokens = self.max_tokens.unwrap_or_else(|| self.default_max_tokens.min(room));
        let wants_output = self.max_tokens != Some(0);
        if tokens.len() > model.max_model_len || max_tokens > room || (room == 0 && wants_output) {
            return Err(self.too_long(tokens.len(), model.max_model_len));
        }
        Ok(Prompt { tokens, source: None, max_tokens, images: None })
    }

    /// Finds room for the translation of a source.
    pub(super) fn fit_translation(
        &self,
        translatable: Translatable,
        model: &ServedModel,
    ) -> Result<Prompt, ApiError> {
        if self.truncate.is_some() {
            let message = "`truncate_prompt_tokens` would cut a text that is to be translated; leave it out";
            return Err(ApiError::invalid("truncate_prompt_tokens", message));
        }
        let prompt = self.fit(translatable.start, model)?;
        Ok(Prompt { source: Some(translatable.source), ..prompt })
    }

    fn too_long(&self, prompt: usize, limit: usize) -> ApiError {
        let wanted = self.max_tokens.map_or_else(
            || "no room for output".to_owned(),
            |max| format!("{max} tokens of output (max_tokens), together {}", prompt + max),
        );
        let message = format!(
            "this model's maximum context length is {limit} tokens; the prompt has {prompt} tokens, with {wanted}; \
             shorten the prompt, lower max_tokens, or set truncate_prompt_tokens"
        );
        ApiError::invalid("prompt", message).with_code("context_length_exceeded")
    }
}

/// `truncate_prompt_tokens`; -1 means the whole context.
fn truncation(fields: &mut Fields, model: &ServedModel) -> Result<Option<usize>, ApiError> {
    let name = "truncate_prompt_tokens";
    let limit = model.max_model_len;
    match fields.integer(name)? {
        None => Ok(None),
        Some(-1) => Ok(Some(limit.saturating_sub(1))),
        Some(keep) => match usize::try_from(keep) {
            Ok(keep) if (1..=limit).contains(&keep) => Ok(Some(keep)),
            _ => {
                let message = format!(
                    "`{name}`: expected an integer from 1 to the context length {limit}, or -1, found {keep}"
                );
                Err(ApiError::invalid(name, message))
            }
        },
    }
}

/// Reads `prompt`: a string, a list of strings, token ids, or a list of token-id lists.
pub(super) fn read(fields: &mut Fields, vocab_size: usize) -> Result<Vec<Source>, ApiError> {
    let value = fields
        .take("prompt")
        .ok_or_else(|| ApiError::invalid("prompt", "`prompt` is missing; send text or token ids"))?;
    let expected = "a string, an array of strings, an array of token ids, or an array of arrays of token ids";
    let items = match value {
        Value::String(text) => return Ok(vec![Source::Text(text)]),
        Value::Array(items) if items.is_empty() => {
            return Err(ApiError::invalid(
                "prompt",
                "`prompt`: expected at least one item, found an empty array",
            ));
        }
        Value::Array(items) => items,
        other => return Err(mismatch("prompt", expected, &other)),
    };
    match items.first() {
        Some(Value::Number(_)) => Ok(vec![Source::Tokens(tokens("prompt", &items, vocab_size)?)]),
        Some(Value::String(_)) => {
            let text = |(i, item)| string(&format!("prompt[{i}]"), item).map(Source::Text);
            items.into_iter().enumerate().map(text).collect()
        }
        Some(Value::Array(_)) => items
            .iter()
            .enumerate()
            .map(|(i, item)| {
                let path = format!("prompt[{i}]");
                let ids = item.as_array().ok_or_else(|| mismatch(&path, "an array of token ids", item))?;
                tokens(&path, ids, vocab_size).map(Source::Tokens)
            })
            .collect(),
        Some(other) => Err(mismatch("prompt[0]", "a string, a token id or an array of token ids", other)),
        None => Ok(Vec::new()),
    }
}

/// The model's tokenizer, or the error for requests that need one.
pub(super) fn require_text<'a>(model: &'a ServedModel, param: &str) -> Result<&'a dyn Text, ApiError> {
    model.text.as_deref().ok_or_else(|| {
        let message = format!(
            "`{param}`: this model is served without a tokenizer, so text cannot be read; send token ids to /v1/completions"
        );
        ApiError::invalid(param, message)
    })
}
