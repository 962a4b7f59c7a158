//! Prometheus metrics under vLLM's names, so that existing dashboards and routers work.
//!
//! Every series carries `model_name` and `engine="0"` as global labels of the recorder. This module records what one
//! request goes through; the engine records its own state, token counts and times.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use metrics::{counter, describe_counter, describe_histogram, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

const TIME_TO_FIRST_TOKEN: &str = "vllm:time_to_first_token_seconds";
const INTER_TOKEN_LATENCY: &str = "vllm:inter_token_latency_seconds";
const E2E_LATENCY: &str = "vllm:e2e_request_latency_seconds";
const REQUEST_PROMPT_TOKENS: &str = "vllm:request_prompt_tokens";
const REQUEST_GENERATION_TOKENS: &str = "vllm:request_generation_tokens";
const REQUEST_PARAMS_N: &str = "vllm:request_params_n";
const REQUEST_PARAMS_MAX_TOKENS: &str = "vllm:request_params_max_tokens";
const REQUEST_MAX_GENERATION_TOKENS: &str = "vllm:request_max_num_generation_tokens";
const REQUEST_SUCCESS: &str = "vllm:request_success_total";
const UNKNOWN_FIELDS: &str = "metrale:unknown_request_fields_total";

const FIRST_TOKEN_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const TOKEN_LATENCY_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
    20.0, 40.0, 80.0,
];
const REQUEST_LATENCY_BUCKETS: &[f64] = &[
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
];
const N_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
const TOKEN_COUNT_BUCKETS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];
const STEP_TOKEN_BUCKETS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// Histograms that this module records.
const REQUEST_BUCKETS: &[(&str, &[f64])] = &[
    (TIME_TO_FIRST_TOKEN, FIRST_TOKEN_BUCKETS),
    (INTER_TOKEN_LATENCY, TOKEN_LATENCY_BUCKETS),
    (E2E_LATENCY, REQUEST_LATENCY_BUCKETS),
    (REQUEST_PROMPT_TOKENS, TOKEN_COUNT_BUCKETS),
    (REQUEST_GENERATION_TOKENS, TOKEN_COUNT_BUCKETS),
    (REQUEST_PARAMS_N, N_BUCKETS),
    (REQUEST_PARAMS_MAX_TOKENS, TOKEN_COUNT_BUCKETS),
    (REQUEST_MAX_GENERATION_TOKENS, TOKEN_COUNT_BUCKETS),
];

/// Histograms that the engine records; their buckets are fixed here with the others.
const ENGINE_BUCKETS: &[(&str, &[f64])] = &[
    ("vllm:request_queue_time_seconds", REQUEST_LATENCY_BUCKETS),
    ("vllm:request_inference_time_seconds", REQUEST_LATENCY_BUCKETS),
    ("vllm:request_prefill_time_seconds", REQUEST_LATENCY_BUCKETS),
    ("vllm:request_decode_time_seconds", REQUEST_LATENCY_BUCKETS),
    ("vllm:iteration_tokens_total", STEP_TOKEN_BUCKETS),
];

/// The process has one recorder; the first call decides its labels.
static INSTALLED: Mutex<Option<PrometheusHandle>> = Mutex::new(None);

/// Installs the process-wide recorder with the label `model_name`; later calls return the same handle.
pub fn install(model_name: &str) -> Result<PrometheusHandle, BuildError> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*installed {
        return Ok(handle.clone());
    }
    let mut builder =
        PrometheusBuilder::new().add_global_label("model_name", model_name).add_global_label("engine", "0");
    for (name, buckets) in REQUEST_BUCKETS.iter().chain(ENGINE_BUCKETS) {
        builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), buckets)?;
    }
    let handle = builder.install_recorder()?;
    describe();
    *installed = Some(handle.clone());
    Ok(handle)
}

fn describe() {
    describe_histogram!(TIME_TO_FIRST_TOKEN, "Time from arrival to the first token.");
    describe_histogram!(INTER_TOKEN_LATENCY, "Time between two tokens of a request.");
    describe_histogram!(E2E_LATENCY, "Time from arrival to the last token.");
    describe_histogram!(REQUEST_PROMPT_TOKENS, "Prompt tokens of a request.");
    describe_histogram!(REQUEST_GENERATION_TOKENS, "Generated tokens of a request.");
    describe_histogram!(REQUEST_PARAMS_N, "The n of a request.");
    describe_histogram!(REQUEST_PARAMS_MAX_TOKENS, "The max_tokens of a request.");
    describe_histogram!(
        REQUEST_MAX_GENERATION_TOKENS,
        "Most generated tokens among the choices of a request."
    );
    describe_counter!(REQUEST_SUCCESS, "Finished requests by reason.");
    describe_counter!(UNKNOWN_FIELDS, "Request fields that the server does not know and ignored.");
    counter!(UNKNOWN_FIELDS).absolute(0);
    for reason in ["stop", "length", "abort", "error"] {
        counter!(REQUEST_SUCCESS, "finished_reason" => reason).absolute(0);
    }
}

/// Counts fields that were ignored.
pub(super) fn count_unknown_fields(count: usize) {
    counter!(UNKNOWN_FIELDS).increment(count as u64);
}

/// Records `n` and `max_tokens` of an HTTP request.
pub(super) fn record_params(n: usize, max_tokens: usize) {
    histogram!(REQUEST_PARAMS_N).record(n as f64);
    histogram!(REQUEST_PARAMS_MAX_TOKENS).record(max_tokens as f64);
}

/// Records the longest output among the choices of an HTTP request.
pub(super) fn record_longest_output(tokens: usize) {
    histogram!(REQUEST_MAX_GENERATION_TOKENS).record(tokens as f64);
}

/// The clock of one generation. Dropped before [`Timer::finish`], it counts the generation as aborted.
#[derive(Debug)]
pub(super) struct Timer {
    arrival: Instant,
    last_token: Option<Instant>,
    prompt_tokens: usize,
    tokens: usize,
    finished: bool,
}

impl Timer {
    pub(super) fn start(arrival: Instant, prompt_tokens: usize) -> Self {
        Self { arrival, last_token: None, prompt_tokens, tokens: 0, finished: false }
    }

    /// Another token has arrived.
    pub(super) fn token(&mut self) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => histogram!(TIME_TO_FIRST_TOKEN).record(now - self.arrival),
            Some(last) => histogram!(INTER_TOKEN_LATENCY).record(now - last),
        }
        self.tokens += 1;
    }

    /// All tokens have arrived together, as those of a beam search do.
    pub(super) fn tokens_at_once(&mut self, tokens: usize) {
        histogram!(TIME_TO_FIRST_TOKEN).record(self.arrival.elapsed());
        self.tokens += tokens;
    }

    /// The generation has ended for `reason`.
    pub(super) fn finish(&mut self, reason: &'static str) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        histogram!(E2E_LATENCY).record(self.arrival.elapsed());
        histogram!(REQUEST_PROMPT_TOKENS).record(self.prompt_tokens as f64);
        histogram!(REQUEST_GENERATION_TOKENS).record(self.tokens as f64);
        counter!(REQUEST_SUCCESS, "finished_reason" => reason).increment(1);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.finish("abort");
    }
}
