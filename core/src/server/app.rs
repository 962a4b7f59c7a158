//! The state that all handlers share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Map, Value};

use super::backend::{ServedModel, Snapshot};
use super::error::ApiError;
use super::request::unix_time;

/// Without a finished step for this long, an engine with work to do counts as stuck.
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(30);

/// How the server treats its clients.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Names of the model, the first one is reported. Never empty.
    pub model_names: Vec<String>,
    /// Bearer key that clients must send.
    pub api_key: Option<String>,
    /// Most log-probabilities per token.
    pub max_logprobs: u32,
    /// Largest request body in bytes.
    pub max_body_bytes: usize,
    /// Template variables that requests may override.
    pub chat_template_kwargs: Map<String, Value>,
    /// Log every request.
    pub log_requests: bool,
}

/// A server: first without a model (loading), then with one.
pub struct App {
    pub(super) options: ServerOptions,
    pub(super) metrics: PrometheusHandle,
    pub(super) started: u64,
    model: OnceLock<Arc<ServedModel>>,
}

/// What the server can do now.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    Loading,
    Ready,
    Draining,
    /// The engine cannot go on; the process should be restarted.
    Broken(String),
}

impl App {
    /// A server that is still loading its model.
    #[must_use]
    pub fn new(options: ServerOptions, metrics: PrometheusHandle) -> Arc<Self> {
        Arc::new(Self { options, metrics, started: unix_time(), model: OnceLock::new() })
    }

    /// The model has been loaded; requests are answered from now on. Only the first call counts.
    pub fn set_model(&self, model: ServedModel) {
        if self.model.set(Arc::new(model)).is_err() {
            tracing::error!("a second model was given to the server; the first one stays");
        }
    }

    /// The model, once it is loaded.
    #[must_use]
    pub fn model(&self) -> Option<&Arc<ServedModel>> {
        self.model.get()
    }

    /// The engine's state, once the model is loaded.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.model().map(|model| model.engine.snapshot())
    }

    pub(super) fn condition(&self) -> Condition {
        let Some(snapshot) = self.snapshot() else { return Condition::Loading };
        if !snapshot.healthy {
            return Condition::Broken("the engine has failed; restart the server".to_owned());
        }
        if snapshot.is_stuck(HEARTBEAT_LIMIT) {
            return Condition::Broken(format!(
                "the engine has made no progress for {} s with {} running and {} waiting requests; restart the server",
                snapshot.since_progress.as_secs(),
                snapshot.running,
                snapshot.waiting
            ));
        }
        if snapshot.draining { Condition::Draining } else { Condition::Ready }
    }

    /// The model, if requests can be answered now.
    pub(super) fn require_model(&self) -> Result<&Arc<ServedModel>, ApiError> {
        self.model().ok_or_else(|| ApiError::unavailable("the model is still loading; try again later"))
    }

    /// The name to report for a request's `model` field.
    pub(super) fn match_name(&self, requested: Option<String>) -> Result<String, ApiError> {
        let names = &self.options.model_names;
        match requested {
            None => Ok(names.first().cloned().unwrap_or_default()),
            Some(name) if names.contains(&name) => Ok(name),
            Some(name) => {
                let known = names.join("`, `");
                let message = format!("the model `{name}` does not exist; this server has `{known}`");
                Err(ApiError::not_found("model_not_found", message).about("model"))
            }
        }
    }
}
