//! Errors as LibreTranslate's clients read them.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::EngineError;
use crate::server::error::ApiError;

/// An error with the body `{"error": message}`.
#[derive(Debug)]
pub(in crate::server) struct LibreError(ApiError);

impl From<ApiError> for LibreError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<EngineError> for LibreError {
    fn from(error: EngineError) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for LibreError {
    fn into_response(self) -> Response {
        in_libretranslates_shape(&self.0)
    }
}

/// The response to a request that failed before it reached its handler.
pub(in crate::server) fn in_libretranslates_shape(error: &ApiError) -> Response {
    error.log();
    (error.status, Json(json!({ "error": error.message() }))).into_response()
}
