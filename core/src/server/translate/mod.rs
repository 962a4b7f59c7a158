//! LibreTranslate's endpoints: `POST /translate`, `POST /detect`, `GET /languages`. Errors have its shape,
//! `{"error": message}`.

mod body;
mod error;
mod request;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};

use super::app::App;
use super::backend::ServedModel;
use super::error::ApiError;
use super::middleware::RequestTag;
use super::request::{note_unknown, off_thread};
use crate::translation::{Detected, Translation};

use body::LibreBody;
use error::LibreError;
use request::{TranslateRequest, texts};

/// Paths whose clients may send the API key in the body, where it is checked.
pub(super) const KEY_IN_BODY: &[&str] = &["/translate", "/detect"];
/// Path of the list of languages.
pub(super) const LANGUAGES: &str = "/languages";

pub(super) use error::in_libretranslates_shape;

pub(super) async fn translate(
    State(app): State<Arc<App>>,
    Extension(tag): Extension<RequestTag>,
    LibreBody(fields): LibreBody,
) -> Result<Json<Value>, LibreError> {
    let arrival = Instant::now();
    let model = Arc::clone(app.require_model()?);
    let log_requests = app.options.log_requests;
    let for_reading = Arc::clone(&model);
    let request =
        off_thread(move || TranslateRequest::read(fields, &app, &for_reading, &tag.0, arrival)).await?;
    if log_requests {
        request.job.log();
    }
    let deltas = if request.job.num_choices() == 0 {
        Vec::new()
    } else {
        request.job.start(&model)?.collect().await?.0
    };
    Ok(Json(request.answer(&deltas)))
}

/// The language of each text. For one text a list with at most one entry, for a list of texts a list of such lists.
pub(super) async fn detect(
    State(app): State<Arc<App>>,
    LibreBody(mut fields): LibreBody,
) -> Result<Json<Value>, LibreError> {
    let model = Arc::clone(app.require_model()?);
    let answer = off_thread(move || {
        let translation = require_translation(&model)?;
        let (texts, is_list) = texts(&mut fields)?;
        note_unknown(&fields);
        let found = texts.iter().map(|text| translation.detector.detect(text));
        let mut lists: Vec<Value> =
            found.map(|found| found.iter().map(detected_language).collect::<Value>()).collect();
        Ok(if is_list { Value::Array(lists) } else { lists.pop().unwrap_or_default() })
    });
    Ok(Json(answer.await?))
}

/// Every language, each with what it can be translated to.
pub(super) async fn languages(State(app): State<Arc<App>>) -> Result<Json<Value>, LibreError> {
    let model = app.require_model()?;
    let languages = &require_translation(model)?.languages;
    let targets: Vec<&str> = languages.iter().map(|language| language.code.as_str()).collect();
    let entry = |language: &crate::translation::Language| {
        json!({
            "code": language.code,
            "name": language.name,
            "model_code": language.model_code,
            "targets": targets,
        })
    };
    Ok(Json(languages.iter().map(entry).collect()))
}

fn require_translation(model: &ServedModel) -> Result<&Translation, ApiError> {
    model.translation.as_deref().ok_or_else(|| {
        ApiError::malformed(
            "this model does not translate; serve a translation model, or use /v1/chat/completions",
        )
    })
}

/// Confidence is a percentage there.
fn detected_language(found: &Detected<'_>) -> Value {
    language_value(&found.language.code, found.confidence)
}

fn language_value(code: &str, confidence: f64) -> Value {
    json!({ "language": code, "confidence": (confidence * 1000.0).round() / 10.0 })
}
