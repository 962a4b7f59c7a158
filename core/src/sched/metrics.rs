//! The engine's metrics, under vLLM's names so that existing dashboards and routers read them.
//!
//! Handles are looked up once, when the engine starts: a recorder must be installed before that.

use std::time::Instant;

use ::metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::sequence::Timeline;
use crate::speculative::config::MAX_DRAFTS;

/// Why tokens that are in the KV cache had to be computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unused {
    /// The model has recurrent state and no snapshot of it exists at this depth of the prefix.
    NoStateSnapshot,
    /// The request wants prompt log-probabilities, which need the logits of every position.
    PromptLogprobs,
}

#[derive(Debug)]
pub(super) struct EngineMetrics {
    pub(super) num_requests_running: Gauge,
    pub(super) num_requests_waiting: Gauge,
    pub(super) kv_cache_usage_perc: Gauge,
    pub(super) num_preemptions: Counter,
    pub(super) prefix_cache_queries: Counter,
    pub(super) prefix_cache_hits: Counter,
    pub(super) iteration_tokens: Histogram,
    pub(super) prompt_tokens: Counter,
    pub(super) generation_tokens: Counter,
    num_drafts: Counter,
    num_draft_tokens: Counter,
    num_accepted_tokens: Counter,
    num_accepted_tokens_per_pos: [Counter; MAX_DRAFTS],
    unused_no_state_snapshot: Counter,
    unused_prompt_logprobs: Counter,
    queue_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    inference_time: Histogram,
}

impl EngineMetrics {
    pub(super) fn register() -> Self {
        describe();
        Self {
            num_requests_running: gauge!("vllm:num_requests_running"),
            num_requests_waiting: gauge!("vllm:num_requests_waiting"),
            kv_cache_usage_perc: gauge!("vllm:kv_cache_usage_perc"),
            num_preemptions: counter!("vllm:num_preemptions_total"),
            prefix_cache_queries: counter!("vllm:prefix_cache_queries_total"),
            prefix_cache_hits: counter!("vllm:prefix_cache_hits_total"),
            iteration_tokens: histogram!("vllm:iteration_tokens_total"),
            prompt_tokens: counter!("vllm:prompt_tokens_total"),
            generation_tokens: counter!("vllm:generation_tokens_total"),
            num_drafts: counter!("vllm:spec_decode_num_drafts_total"),
            num_draft_tokens: counter!("vllm:spec_decode_num_draft_tokens_total"),
            num_accepted_tokens: counter!("vllm:spec_decode_num_accepted_tokens_total"),
            num_accepted_tokens_per_pos: std::array::from_fn(
                |position| counter!(ACCEPTED_PER_POS, "position" => position.to_string()),
            ),
            unused_no_state_snapshot: counter!(UNUSED, "reason" => "no_state_snapshot"),
            unused_prompt_logprobs: counter!(UNUSED, "reason" => "prompt_logprobs"),
            queue_time: histogram!("vllm:request_queue_time_seconds"),
            prefill_time: histogram!("vllm:request_prefill_time_seconds"),
            decode_time: histogram!("vllm:request_decode_time_seconds"),
            inference_time: histogram!("vllm:request_inference_time_seconds"),
        }
    }

    /// Counts the drafts of one sequence that were verified.
    pub(super) fn count_drafts(&self, num_drafts: usize, num_accepted: usize) {
        self.num_drafts.increment(1);
        self.num_draft_tokens.increment(num_drafts as u64);
        self.num_accepted_tokens.increment(num_accepted as u64);
        for counter in self.num_accepted_tokens_per_pos.iter().take(num_accepted) {
            counter.increment(1);
        }
    }

    /// Counts cached tokens that were not reused.
    pub(super) fn count_unused(&self, reason: Unused, num_tokens: usize) {
        let counter = match reason {
            Unused::NoStateSnapshot => &self.unused_no_state_snapshot,
            Unused::PromptLogprobs => &self.unused_prompt_logprobs,
        };
        counter.increment(num_tokens as u64);
    }

    /// Records where a finished request spent its time.
    pub(super) fn record_times(&self, timeline: &Timeline, finished: Instant) {
        let Some(scheduled) = timeline.scheduled else { return };
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        self.queue_time.record(seconds(timeline.submitted, scheduled));
        let prefilled = timeline.first_token.unwrap_or(finished);
        self.prefill_time.record(seconds(scheduled, prefilled));
        self.decode_time.record(seconds(prefilled, finished));
        self.inference_time.record(seconds(scheduled, finished));
    }
}

const ACCEPTED_PER_POS: &str = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
const UNUSED: &str = "metrale:prefix_cache_unused_tokens_total";

fn describe() {
    describe_gauge!("vllm:num_requests_running", "Requests in the running batch");
    describe_gauge!("vllm:num_requests_waiting", "Requests that wait to be scheduled");
    describe_gauge!("vllm:kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1");
    describe_counter!("vllm:num_preemptions_total", "Sequences that lost their pages and are computed again");
    describe_counter!("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache");
    describe_counter!("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache and reused");
    describe_counter!(UNUSED, "Tokens found in the prefix cache and not reused, by reason");
    describe_histogram!("vllm:iteration_tokens_total", "Tokens computed per step");
    describe_counter!("vllm:prompt_tokens_total", "Prompt tokens of prefilled requests");
    describe_counter!("vllm:generation_tokens_total", "Sampled tokens");
    describe_counter!("vllm:spec_decode_num_drafts_total", "Times that a sequence was verified with drafts");
    describe_counter!("vllm:spec_decode_num_draft_tokens_total", "Drafts that were verified");
    describe_counter!("vllm:spec_decode_num_accepted_tokens_total", "Drafts that were accepted");
    describe_counter!(ACCEPTED_PER_POS, "Drafts that were accepted, by their place");
    let seconds = Unit::Seconds;
    describe_histogram!("vllm:request_queue_time_seconds", seconds, "From submission to the first schedule");
    describe_histogram!(
        "vllm:request_prefill_time_seconds",
        seconds,
        "From the first schedule to the first token"
    );
    describe_histogram!("vllm:request_decode_time_seconds", seconds, "From the first token to the last");
    describe_histogram!(
        "vllm:request_inference_time_seconds",
        seconds,
        "From the first schedule to the last token"
    );
}
