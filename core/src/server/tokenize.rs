//! `POST /tokenize` and `POST /detokenize`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::app::App;
use super::error::ApiError;
use super::extract::JsonBody;
use super::fields::Fields;
use super::generation::TokenNames;
use super::images;
use super::messages;
use super::prompt::require_text;
use super::request::{note_unknown, off_thread};
use super::sampling::token_ids;

/// Takes `prompt`, or `messages` as chat does; answers with the token ids.
pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    JsonBody(fields): JsonBody,
) -> Result<Json<Value>, ApiError> {
    off_thread(move || encode(fields, &app)).await.map(Json)
}

/// Takes `tokens`; answers with the text.
pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    JsonBody(fields): JsonBody,
) -> Result<Json<Value>, ApiError> {
    off_thread(move || decode(fields, &app)).await.map(Json)
}

fn encode(mut fields: Fields, app: &App) -> Result<Value, ApiError> {
    let model = app.require_model()?;
    app.match_name(fields.string("model")?)?;
    let wants_strings = fields.boolean("return_token_strs")?.unwrap_or(false);
    let add_special_tokens = fields.boolean("add_special_tokens")?;
    let tokens = if let Some(prompt) = fields.string("prompt")? {
        require_text(model, "prompt")?.encode(&prompt, add_special_tokens.unwrap_or(true))?
    } else {
        let (chat, parts) = messages::read(&mut fields, app)?;
        let text = require_text(model, "messages")?;
        let tokens = text.encode(&text.render_chat(&chat)?, add_special_tokens.unwrap_or(false))?;
        images::place(tokens, &parts, model)?.0
    };
    note_unknown(&fields);
    let names = TokenNames { text: model.text.clone(), as_ids: false };
    let strings = wants_strings.then(|| tokens.iter().map(|&token| names.name(token)).collect::<Vec<_>>());
    Ok(json!({
        "count": tokens.len(),
        "max_model_len": model.max_model_len,
        "tokens": tokens,
        "token_strs": strings,
    }))
}

fn decode(mut fields: Fields, app: &App) -> Result<Value, ApiError> {
    let model = app.require_model()?;
    app.match_name(fields.string("model")?)?;
    let tokens = token_ids(&mut fields, "tokens", model.vocab_size)?
        .ok_or_else(|| ApiError::invalid("tokens", "`tokens` is missing; send an array of token ids"))?;
    note_unknown(&fields);
    let prompt = require_text(model, "tokens")?.decode(&tokens, false)?;
    Ok(json!({ "prompt": prompt }))
}
