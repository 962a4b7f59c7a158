//! Reading request bodies: JSON up to the size limit, everything else an error in OpenAI's shape.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use futures_util::StreamExt;

use super::app::App;
use super::error::ApiError;
use super::fields::Fields;

/// A request body that is a JSON object.
pub(super) struct JsonBody(pub(super) Fields);

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        check_content_type(request.headers())?;
        let body = read_whole(request, app).await?;
        Fields::parse(&body).map(Self)
    }
}

/// A whole body, up to the size limit.
pub(super) async fn read_whole(request: Request, app: &App) -> Result<Vec<u8>, ApiError> {
    let limit = app.options.max_body_bytes;
    if text(request.headers(), &CONTENT_LENGTH)
        .and_then(|length| length.parse().ok())
        .is_some_and(|length: usize| length > limit)
    {
        return Err(ApiError::body_too_large(limit));
    }
    read(request.into_body(), limit).await
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    match text(headers, &CONTENT_TYPE) {
        Some(kind) if !is_json(kind) => Err(ApiError::malformed(format!(
            "expected the header `Content-Type: application/json`, found `{kind}`"
        ))),
        _ => Ok(()),
    }
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Reads a body of unknown length, up to `limit` bytes.
async fn read(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut chunks = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk
            .map_err(|error| ApiError::malformed(format!("the request body could not be read: {error}")))?;
        if bytes.len() + chunk.len() > limit {
            return Err(ApiError::body_too_large(limit));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
