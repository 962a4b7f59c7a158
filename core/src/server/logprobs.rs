//! Log-probabilities on the wire: the legacy shape of completions, the shape of chat, and `prompt_logprobs`.

use serde_json::{Map, Value, json};

use super::generation::TokenNames;
use crate::sched::{PositionLogprobs, TokenLogprob};

/// JSON has no infinity: impossible tokens get this.
const LEAST_LOGPROB: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    logprob.max(LEAST_LOGPROB)
}

/// The columns of the completions shape, filled position by position.
#[derive(Debug, Default)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds a position with its `num_top` likeliest tokens; `offset` counts characters of token text and moves past
    /// this token.
    ///
    /// The first prompt token has no distribution (`position` is `None`).
    pub(super) fn push(
        &mut self,
        names: &TokenNames,
        token: u32,
        position: Option<&PositionLogprobs>,
        num_top: usize,
        offset: &mut usize,
    ) {
        let name = names.name(token);
        self.text_offset.push(*offset);
        *offset += name.chars().count();
        self.tokens.push(name);
        self.token_logprobs.push(position.map(|p| finite(p.chosen.logprob)));
        self.top_logprobs.push(position.map_or(Value::Null, |p| top_by_name(names, p, num_top)));
    }

    pub(super) fn into_value(self) -> Value {
        json!({
            "text_offset": self.text_offset,
            "token_logprobs": self.token_logprobs,
            "tokens": self.tokens,
            "top_logprobs": self.top_logprobs,
        })
    }
}

/// Token text to log-probability, the chosen token included. Of tokens with the same text the likelier one stays.
fn top_by_name(names: &TokenNames, position: &PositionLogprobs, num_top: usize) -> Value {
    let mut map = Map::new();
    for token in position.top.iter().take(num_top).chain([&position.chosen]) {
        map.entry(names.name(token.token)).or_insert_with(|| json!(finite(token.logprob)));
    }
    Value::Object(map)
}

/// One entry of `choices[].logprobs.content` of chat, with `num_top` alternatives.
pub(super) fn chat_entry(names: &TokenNames, position: &PositionLogprobs, num_top: usize) -> Value {
    let entry = |token: &TokenLogprob| {
        json!({
            "token": names.name(token.token),
            "logprob": finite(token.logprob),
            "bytes": names.bytes(token.token),
        })
    };
    let mut chosen = entry(&position.chosen);
    chosen["top_logprobs"] = position.top.iter().take(num_top).map(entry).collect();
    chosen
}

/// The `prompt_logprobs` extension: per position null or token id to log-probability, rank and text.
pub(super) fn prompt_logprobs(names: &TokenNames, positions: &[Option<PositionLogprobs>]) -> Value {
    let entry = |token: &TokenLogprob| {
        let value = json!({
            "logprob": finite(token.logprob),
            "rank": token.rank,
            "decoded_token": names.name(token.token),
        });
        (token.token.to_string(), value)
    };
    let position = |position: &PositionLogprobs| {
        Value::Object(std::iter::once(&position.chosen).chain(&position.top).map(entry).collect())
    };
    positions.iter().map(|p| p.as_ref().map_or(Value::Null, position)).collect()
}
