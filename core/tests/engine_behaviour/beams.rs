//! Beam search behind the scheduler finds what the search finds over the model alone, whoever else runs.

use std::sync::Arc;

use metrale_core::exec::SourceLimits;
use metrale_core::exec::sample::SamplingState;
use metrale_core::exec::sample::beam::{BeamSearch, SearchLengths};

use super::*;

const NUM_TOKENS: usize = 14;
/// About one in twenty tokens ends a hypothesis.
const STOPS: [u32; 3] = [7, 19, 40];

fn search(prompt: &[u32], beams: BeamParams) -> GenerateRequest {
    let sampling = SamplingParams { stop_token_ids: STOPS.to_vec(), ..greedy(NUM_TOKENS) };
    request(prompt, sampling).with_beams(beams)
}

fn beams(num_beams: usize) -> BeamParams {
    BeamParams { num_return: num_beams, ..BeamParams::new(num_beams) }
}

fn modes() -> impl Iterator<Item = BeamParams> + Clone {
    [EarlyStopping::Heuristic, EarlyStopping::WhenFull, EarlyStopping::Never].into_iter().flat_map(|mode| {
        [0.0, 0.6, 1.0].map(|length_penalty| BeamParams { early_stopping: mode, length_penalty, ..beams(4) })
    })
}

fn requests() -> Vec<GenerateRequest> {
    prompts(24).iter().zip(modes().cycle()).map(|(prompt, beams)| search(prompt, beams)).collect()
}

/// The search without an engine: every beam's history is run anew at every step.
fn expected(request: &GenerateRequest) -> Vec<Hypothesis> {
    let prompt = &request.prompt;
    let lengths = SearchLengths {
        prompt: prompt.len(),
        uncounted: if request.source.is_some() { 1 } else { prompt.len() },
        max: prompt.len() + request.sampling.max_tokens,
    };
    let sampling = SamplingState::new(request.sampling.clone(), 0, prompt, &[]);
    let mut search = BeamSearch::new(request.beams.unwrap(), sampling, lengths, STOPS.to_vec());
    let start = [request.source.clone().unwrap_or_default(), prompt.clone()].concat();
    let mut histories = vec![start];
    loop {
        let rows: Vec<Vec<f32>> = histories
            .iter()
            .map(|history| {
                let mut model = FakeModel::default();
                history.iter().for_each(|token| model.push(*token));
                model.logits(VOCAB_SIZE).collect()
            })
            .collect();
        let Some(parents) = search.advance(rows.iter().map(Vec::as_slice)).unwrap() else { break };
        histories = parents
            .iter()
            .zip(search.last_tokens())
            .map(|(&parent, token)| [histories[parent].as_slice(), &[token]].concat())
            .collect();
    }
    search.best()
}

fn check(engine: &EngineHandle, requests: &[GenerateRequest]) {
    for (answer, request) in run_together(engine, requests).iter().zip(requests) {
        assert_eq!(answer.error, None);
        assert_eq!(answer.hypotheses, expected(request));
        assert!(answer.tokens.is_empty(), "hypotheses come instead of tokens");
    }
    assert_no_leak(engine);
}

#[test]
fn searches_side_by_side_find_what_each_finds_alone() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let requests = requests();
    // Twice: the second time, prompts are found in the prefix cache.
    check(&engine, &requests);
    check(&engine, &requests);
    let ended = expected(&requests[1]).iter().filter(|h| h.ended_by.is_some()).count();
    assert!(ended > 0, "some hypotheses end before the longest length");
}

#[test]
fn other_requests_run_beside_a_search() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let plain: Vec<_> = prompts(8).iter().map(|prompt| request(prompt, greedy(NUM_TOKENS))).collect();
    let all: Vec<_> = plain.iter().cloned().chain(requests()).collect();
    let answers = run_together(&engine, &all);
    for (answer, request) in answers.iter().zip(&all) {
        match request.beams {
            Some(_) => assert_eq!(answer.hypotheses, expected(request)),
            None => {
                assert_eq!(answer.tokens, FakeModel::greedy(&request.prompt, NUM_TOKENS, VOCAB_SIZE));
            }
        }
    }
    assert_no_leak(&engine);
}

#[test]
fn a_preempted_search_starts_again_and_finds_the_same() {
    // The longest prompt with its beams just fits.
    let limits = RunnerLimits { num_blocks: 45, ..limits() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), SchedulerConfig::default());
    check(&engine, &requests());
    assert!(settled(&engine).num_preemptions > 0, "the pool is small enough to force preemption");
}

#[test]
fn a_step_has_no_more_sequences_than_allowed() {
    for max_num_seqs in [4, 5, 9] {
        let config = SchedulerConfig { max_num_seqs: Some(max_num_seqs), ..SchedulerConfig::default() };
        let runner = FakeRunner::new(limits()).with_hook(move |batch, _| {
            if batch.seqs.len() <= max_num_seqs { Ok(()) } else { Err(device_error("too many")) }
        });
        check(&EngineHandle::spawn(Box::new(runner), config), &requests());
    }
}

#[test]
fn the_forced_start_of_a_target_counts_as_output() {
    let limits = RunnerLimits { source: Some(SourceLimits { max_len: 40, num_blocks: 64 }), ..limits() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), SchedulerConfig::default());
    let requests: Vec<_> =
        modes().map(|beams| search(&[2, 9], beams).with_source(vec![5, 6, 8, 11, 30])).collect();
    check(&engine, &requests);
}

#[test]
fn penalties_and_forbidden_repetitions_hold_in_every_beam() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let mut request = search(&[3, 4, 5], beams(4));
    request.sampling =
        SamplingParams { repetition_penalty: 1.3, no_repeat_ngram_size: 1, ..request.sampling };
    check(&engine, std::slice::from_ref(&request));
    for hypothesis in expected(&request) {
        let mut seen = request.prompt.clone();
        for token in hypothesis.tokens {
            assert!(!seen.contains(&token), "{token} is there twice");
            seen.push(token);
        }
    }
}

#[test]
fn an_aborted_search_gives_all_its_pages_back() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    for prompt in prompts(12) {
        let mut request = search(&prompt, beams(4));
        request.sampling.max_tokens = 200;
        drop(engine.submit(request).unwrap());
    }
    check(&engine, &requests());
}

#[test]
fn a_search_that_cannot_run_is_refused_with_the_reason() {
    let refused = |runner: FakeRunner, request: GenerateRequest, name: &str, reason: &str| {
        let engine = EngineHandle::spawn(Box::new(runner), SchedulerConfig::default());
        match engine.submit(request) {
            Err(EngineError::InvalidRequest { message, param }) => {
                assert_eq!(param.as_deref(), Some(name), "{message}");
                assert!(message.contains(reason), "{message}");
            }
            other => panic!("{name}: {other:?}"),
        }
    };
    let roomy = || FakeRunner::new(limits());
    let plain = || search(&[1, 2], beams(4));
    refused(roomy(), search(&[1], BeamParams::new(0)), "num_beams", "at least 1");
    refused(roomy(), search(&[1], BeamParams { num_return: 5, ..beams(4) }), "n", "1 to 4");
    let infinite = BeamParams { length_penalty: f32::INFINITY, ..beams(4) };
    refused(roomy(), search(&[1], infinite), "length_penalty", "finite");
    refused(roomy(), search(&[1], beams(65)), "num_beams", "64 sequences");
    refused(roomy().without_page_copies(), plain(), "num_beams", "on this device");
    let recurrent = RunnerLimits { has_recurrent_state: true, ..limits() };
    refused(FakeRunner::new(recurrent), plain(), "num_beams", "recurrent state");
    let small = RunnerLimits { num_blocks: 16, ..limits() };
    refused(FakeRunner::new(small), plain(), "num_beams", "need 16 KV pages and there are 15");
    let mut scored = plain();
    scored.sampling.logprobs = Some(1);
    refused(roomy(), scored, "logprobs", "beam search");
    let pictured = GenerateRequest { images: Some(Arc::default()), ..plain() };
    refused(roomy(), pictured, "num_beams", "images");
    let mut silent = plain();
    silent.sampling.max_tokens = 0;
    refused(roomy(), silent, "max_tokens", "at least 1");
}
