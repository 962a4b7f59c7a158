//! What happens to every request before its handler: a request id, then the API key.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::app::App;
use super::error::ApiError;
use super::translate;

const REQUEST_ID: &str = "x-request-id";
/// Longer ids of clients are replaced.
const MAX_REQUEST_ID_LEN: usize = 128;
/// Paths that probes and scrapers reach without a key.
const OPEN_PATHS: &[&str] = &["/health", "/ping", "/metrics", "/version"];

/// The id of one HTTP request: the client's `x-request-id`, or a new one.
#[derive(Clone, Debug)]
pub(super) struct RequestTag(pub(super) String);

/// Gives the request its id and puts it on the response.
pub(super) async fn tag(mut request: Request, next: Next) -> Response {
    let id = request.headers().get(REQUEST_ID).and_then(usable_id).unwrap_or_else(new_id);
    let header = HeaderValue::from_str(&id);
    request.extensions_mut().insert(RequestTag(id));
    let mut response = next.run(request).await;
    if let Ok(header) = header {
        response.headers_mut().insert(REQUEST_ID, header);
    }
    response
}

fn usable_id(value: &HeaderValue) -> Option<String> {
    let id = value.to_str().ok()?.trim();
    (!id.is_empty() && id.len() <= MAX_REQUEST_ID_LEN).then(|| id.to_owned())
}

fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Lets requests pass that carry the key, or need none.
pub(super) async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Some(key) = &app.options.api_key else { return next.run(request).await };
    let path = request.uri().path();
    let is_checked_later = translate::KEY_IN_BODY.contains(&path);
    if OPEN_PATHS.contains(&path) || is_checked_later || carries(&request, key) {
        return next.run(request).await;
    }
    let error =
        ApiError::unauthorized("missing or wrong API key; send the header `Authorization: Bearer KEY`");
    if path == translate::LANGUAGES {
        return translate::in_libretranslates_shape(&error);
    }
    error.into_response()
}

/// Whether a request has the key in its header.
pub(super) fn carries(request: &Request, key: &str) -> bool {
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, given)) = given.and_then(|value| value.split_once(' ')) else { return false };
    scheme.eq_ignore_ascii_case("bearer") && is_key(given.trim(), key)
}

/// Comparing digests takes the same time however much of the key is right.
pub(super) fn is_key(given: &str, key: &str) -> bool {
    Sha256::digest(given) == Sha256::digest(key)
}
