//! What the engine promises its clients, whatever else runs: the same text, no leaked page, one end per request.
//!
//! The runner is a fake whose logits are a function of the whole token history as read back through block tables,
//! so that a wrong page, position, chunk or state changes the text or fails the step.

// Clippy sees tests only in functions marked so.
#![allow(clippy::unwrap_used)]

mod fake_runner;

mod batching;
mod beams;
mod faults;
mod lifecycle;
mod logprobs;
mod metrics;
mod prefix;
mod sampling;
mod sources;
mod speculative;

use fake_runner::{FakeModel, FakeRunner};
use metrale_core::EngineError;
use metrale_core::exec::RunnerLimits;
use metrale_core::sched::{
    BeamParams, EarlyStopping, EngineHandle, EngineSnapshot, Event, FinishReason, GenerateRequest,
    Generation, Hypothesis, PositionLogprobs, SamplingParams, SchedulerConfig,
};

const VOCAB_SIZE: usize = 61;

/// A roomy runner: nothing has to wait or be preempted.
fn limits() -> RunnerLimits {
    RunnerLimits {
        max_num_batched_tokens: 256,
        max_num_seqs: 64,
        max_model_len: 512,
        block_size: 4,
        num_blocks: 4096,
        vocab_size: VOCAB_SIZE,
        has_recurrent_state: false,
        max_num_drafts: 0,
        source: None,
    }
}

fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens, ..SamplingParams::default() }
}

fn request(prompt: &[u32], sampling: SamplingParams) -> GenerateRequest {
    GenerateRequest::new(prompt.to_vec(), sampling)
}

/// Prompts of many lengths, some with a common beginning.
fn prompts(num: usize) -> Vec<Vec<u32>> {
    (0..num as u32)
        .map(|i| {
            let len = 1 + (i * 17) % 73;
            (0..len).map(|p| if p < 20 { (p * 3 + i % 3) % 61 } else { (p * 5 + i * 7) % 61 }).collect()
        })
        .collect()
}

/// All that one request received.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<PositionLogprobs>,
    prompt_logprobs: Option<Vec<Option<PositionLogprobs>>>,
    hypotheses: Vec<Hypothesis>,
    reason: Option<FinishReason>,
    num_cached_tokens: usize,
    error: Option<String>,
}

fn answer(generation: &mut Generation) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = generation.blocking_next() {
        assert!(answer.reason.is_none() && answer.error.is_none(), "an event after the last one: {event:?}");
        match event {
            Event::PromptLogprobs(entries) => {
                assert!(answer.tokens.is_empty(), "prompt log-probabilities come before tokens");
                assert!(
                    answer.prompt_logprobs.replace(entries).is_none(),
                    "prompt log-probabilities came twice"
                );
            }
            Event::Token { token, logprobs } => {
                answer.tokens.push(token);
                answer.logprobs.extend(logprobs);
            }
            Event::Finished { reason, num_cached_tokens } => {
                answer.reason = Some(reason);
                answer.num_cached_tokens = num_cached_tokens;
            }
            Event::Hypotheses(found) => answer.hypotheses = found,
            Event::Failed(error) => answer.error = Some(error.to_string()),
        }
    }
    answer
}

/// Submits everything at once and collects every answer.
fn run_together(engine: &EngineHandle, requests: &[GenerateRequest]) -> Vec<Answer> {
    let mut generations: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    generations.iter_mut().map(answer).collect()
}

/// Runs each request on an engine of its own.
fn run_alone(limits: RunnerLimits, config: &SchedulerConfig, requests: &[GenerateRequest]) -> Vec<Answer> {
    requests
        .iter()
        .map(|r| {
            let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), config.clone());
            answer(&mut engine.submit(r.clone()).unwrap())
        })
        .collect()
}

fn texts(answers: &[Answer]) -> Vec<Vec<u32>> {
    answers
        .iter()
        .map(|a| {
            assert_eq!(a.error, None);
            a.tokens.clone()
        })
        .collect()
}

/// The condition once nothing is in flight.
fn settled(engine: &EngineHandle) -> EngineSnapshot {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(engine.drained());
    engine.snapshot()
}

fn assert_no_leak(engine: &EngineHandle) {
    let snapshot = settled(engine);
    assert_eq!((snapshot.running, snapshot.waiting), (0, 0));
    assert_eq!(snapshot.num_free_blocks, snapshot.num_blocks, "pages leaked");
    assert_eq!(snapshot.kv_usage, 0.0);
}

fn device_error(message: &str) -> EngineError {
    EngineError::Device { op: "fake".to_owned(), message: message.to_owned() }
}
