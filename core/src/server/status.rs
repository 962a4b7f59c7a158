//! Endpoints about the server itself: health, load, version, metrics, models.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::app::{App, Condition};
use super::error::ApiError;

/// Readiness: 200 when new requests will be answered.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<StatusCode, ApiError> {
    match app.condition() {
        Condition::Ready => Ok(StatusCode::OK),
        Condition::Loading => Err(ApiError::unavailable("the model is still loading")),
        Condition::Draining => Err(ApiError::unavailable("the server is shutting down")),
        Condition::Broken(reason) => Err(ApiError::unavailable(reason)),
    }
}

/// Liveness: 503 only when a restart is needed.
pub(super) async fn ping(State(app): State<Arc<App>>) -> Result<StatusCode, ApiError> {
    match app.condition() {
        Condition::Broken(reason) => Err(ApiError::unavailable(reason)),
        Condition::Ready | Condition::Loading | Condition::Draining => Ok(StatusCode::OK),
    }
}

pub(super) async fn load(State(app): State<Arc<App>>) -> Json<Value> {
    let (running, waiting, kv_usage) = app
        .snapshot()
        .map_or((0, 0, 0.0), |snapshot| (snapshot.running, snapshot.waiting, snapshot.kv_usage));
    Json(json!({
        "server_load": running + waiting,
        "running": running,
        "waiting": waiting,
        "kv_cache_usage": kv_usage,
    }))
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render()).into_response()
}

pub(super) async fn models(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let cards: Result<Vec<_>, _> = app.options.model_names.iter().map(|name| card(&app, name)).collect();
    Ok(Json(json!({ "object": "list", "data": cards? })))
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = app.match_name(Some(name))?;
    card(&app, &name).map(Json)
}

fn card(app: &App, name: &str) -> Result<Value, ApiError> {
    let model = app.require_model()?;
    Ok(json!({
        "id": name,
        "object": "model",
        "created": app.started,
        "owned_by": "metrale",
        "root": model.root,
        "parent": null,
        "max_model_len": model.max_model_len,
    }))
}
