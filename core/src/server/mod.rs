//! The HTTP API: OpenAI's endpoints, LibreTranslate's, health and metrics.
//!
//! Talks to the engine through [`Backend`], to the tokenizer through [`Text`] and to languages through
//! [`Translation`](crate::translation::Translation), and knows nothing else of the model. Every answer that is not a
//! success has OpenAI's error body, or LibreTranslate's on its endpoints. A request stops in the engine when its client
//! goes away.
//! `docs/http-api.md` lists endpoints and fields.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

mod app;
mod backend;
mod beams;
mod chat;
mod completions;
mod error;
mod extract;
mod fields;
pub(crate) mod generation;
mod images;
mod languages;
mod listen;
mod logprobs;
mod messages;
mod metrics;
mod middleware;
mod prompt;
mod request;
mod sampling;
mod sse;
mod status;
mod text;
mod tokenize;
mod translate;
mod unsupported;

pub use app::{App, ServerOptions};
pub use backend::{Backend, EventStream, ServedModel, Snapshot};
pub use listen::{Ending, ListenError, Listener, serve};
pub use metrics::install as install_metrics;
pub use sampling::SamplingDefaults;
pub use text::{Chat, StreamOptions, Text, TextDelta, TextStream};

use error::ApiError;

/// Every endpoint, with what surrounds them.
fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::handle))
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/models", get(status::models))
        .route("/v1/models/{*name}", get(status::model))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/translate", post(translate::translate))
        .route("/detect", post(translate::detect))
        .route("/languages", get(translate::languages))
        .route("/health", get(status::health))
        .route("/ping", get(status::ping).post(status::ping))
        .route("/load", get(status::load))
        .route("/version", get(status::version))
        .route("/metrics", get(status::metrics))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), middleware::authorize))
        .layer(from_fn(middleware::tag))
        .with_state(app)
}

async fn unknown_path(method: Method, uri: Uri) -> ApiError {
    let message = format!("unknown path {method} {}; see docs/http-api.md for the endpoints", uri.path());
    ApiError::not_found("not_found", message)
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::method_not_allowed(format!("{} does not take {method}; see the header `Allow`", uri.path()))
}
