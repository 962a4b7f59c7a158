//! Errors in OpenAI's shape: `{"error": {message, type, param, code}}` with the matching HTTP status.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::EngineError;

/// An error as a client sees it.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None }
    }

    /// A request that the client can correct; `param` names the field at fault.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::malformed(message) }
    }

    /// A request that cannot be read at all.
    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A known field that this server does not implement.
    pub(super) fn unsupported(param: impl Into<String>, note: &str) -> Self {
        let param = param.into();
        let message = format!("`{param}` is not supported yet: {note}");
        Self { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    pub(super) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, code: Some(code), ..Self::malformed(message) }
    }

    pub(super) fn method_not_allowed(message: impl Into<String>) -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self { status, code: Some("method_not_allowed"), ..Self::malformed(message) }
    }

    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        Self { code: Some("invalid_api_key"), ..error }
    }

    pub(super) fn body_too_large(limit: usize) -> Self {
        let message = format!(
            "the request body is larger than {limit} bytes; send less or raise --max-body-bytes on the server"
        );
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self { status, code: Some("request_too_large"), ..Self::malformed(message) }
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    pub(super) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The same error, blamed on another field.
    pub(super) fn about(self, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..self }
    }

    /// What went wrong, for people.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Logs what is the server's own fault.
    pub(super) fn log(&self) {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), message = %self.message, "request failed");
        }
    }

    /// The response body; also the data of an error frame in a stream.
    pub(super) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.log();
        (self.status, axum::Json(self.body())).into_response()
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::InvalidRequest { param, .. } => Self { param, ..Self::malformed(message) },
            EngineError::Unavailable(_) => Self::unavailable(message),
            EngineError::Device { .. } | EngineError::Internal(_) => Self::internal(message),
        }
    }
}
