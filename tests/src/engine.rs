//! A model behind the scheduler, as clients reach it.

use anyhow::{Result, bail};
use metrale_core::exec::sample::PositionLogprobs;
use metrale_core::exec::{ModelRunner, StepRunner};
use metrale_core::sched::{
    EngineHandle, Event, GenerateRequest, Generation, Hypothesis, SamplingParams, SchedulerConfig,
};
use metrale_core::speculative::{DraftMethod, SpeculativeConfig};

/// So many drafts at a time by a model's multi-token-prediction head.
#[must_use]
pub fn by_mtp(num_speculative_tokens: usize) -> Option<SpeculativeConfig> {
    Some(SpeculativeConfig { method: DraftMethod::Mtp, num_speculative_tokens })
}

/// Starts the scheduler of a model, with drafts or without.
#[must_use]
pub fn serve_drafting(
    runner: impl StepRunner + 'static,
    enable_prefix_caching: bool,
    speculative: Option<SpeculativeConfig>,
) -> EngineHandle {
    let config = SchedulerConfig { enable_prefix_caching, speculative, ..SchedulerConfig::default() };
    EngineHandle::spawn(Box::new(runner), config)
}

/// Starts the scheduler of a model.
#[must_use]
pub fn serve(runner: ModelRunner, enable_prefix_caching: bool, eos_token_ids: &[u32]) -> EngineHandle {
    let eos_token_ids = eos_token_ids.to_vec();
    let config = SchedulerConfig { enable_prefix_caching, eos_token_ids, ..SchedulerConfig::default() };
    EngineHandle::spawn(Box::new(runner), config)
}

/// The most likely token each time, with its log-probability and that of its closest rivals.
#[must_use]
pub fn greedy(prompt: &[u32], max_tokens: usize) -> GenerateRequest {
    let sampling =
        SamplingParams { temperature: 0.0, max_tokens, logprobs: Some(4), ..SamplingParams::default() };
    GenerateRequest::new(prompt.to_vec(), sampling)
}

/// All that one request received.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Output tokens.
    pub tokens: Vec<u32>,
    /// One entry per output token.
    pub logprobs: Vec<PositionLogprobs>,
    /// One entry per prompt token.
    pub prompt_logprobs: Vec<Option<PositionLogprobs>>,
    /// What beam search found, best first.
    pub hypotheses: Vec<Hypothesis>,
    /// Prompt tokens that were not computed.
    pub num_cached_tokens: usize,
}

/// Submits all requests at once and waits for all answers.
///
/// # Errors
/// A request is refused or fails.
pub fn run_together(engine: &EngineHandle, requests: &[GenerateRequest]) -> Result<Vec<Answer>> {
    let generations: Vec<Generation> =
        requests.iter().map(|r| engine.submit(r.clone())).collect::<Result<_, _>>()?;
    generations.into_iter().map(answer).collect()
}

fn answer(mut generation: Generation) -> Result<Answer> {
    let mut answer = Answer::default();
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::PromptLogprobs(entries) => answer.prompt_logprobs = entries,
            Event::Token { token, logprobs } => {
                answer.tokens.push(token);
                answer.logprobs.extend(logprobs);
            }
            Event::Finished { num_cached_tokens, .. } => {
                answer.num_cached_tokens = num_cached_tokens;
                return Ok(answer);
            }
            Event::Hypotheses(found) => answer.hypotheses = found,
            Event::Failed(error) => return Err(error.into()),
        }
    }
    bail!("a generation ended without its last event")
}
