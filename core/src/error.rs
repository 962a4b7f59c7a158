//! The engine's error type: a code, what happened, and what to do about it.

/// Everything that can go wrong between a request and its answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// A request that the client can correct. Becomes HTTP 400.
    #[error("{message}")]
    InvalidRequest {
        /// What is wrong, expected and found.
        message: String,
        /// The request field at fault, if one is.
        param: Option<String>,
    },
    /// The engine is shutting down or overloaded. Becomes HTTP 503.
    #[error("{0}")]
    Unavailable(String),
    /// A step failed on the device; the affected requests end with this.
    #[error("{op} failed: {message}")]
    Device {
        /// The op (and its plugin source line where known).
        op: String,
        /// What the device reported.
        message: String,
    },
    /// An invariant of the engine does not hold: a bug worth reporting.
    #[error("internal error: {0} (this is a bug in metrale; please report it)")]
    Internal(String),
}
