//! Sources of a model with an encoder: encoded once per request, in pages that nobody else writes.

use metrale_core::exec::SourceLimits;

use super::*;

const NUM_TOKENS: usize = 12;

fn source_limits(num_blocks: usize) -> RunnerLimits {
    RunnerLimits { source: Some(SourceLimits { max_len: 40, num_blocks }), ..limits() }
}

fn source(i: usize) -> Vec<u32> {
    (0..=(i * 13) % 40).map(|p| ((p * 7 + i * 5) % VOCAB_SIZE) as u32).collect()
}

/// Targets all start alike, as translations into one language do.
fn requests(num: usize) -> Vec<GenerateRequest> {
    (0..num).map(|i| request(&[2, 9], greedy(NUM_TOKENS)).with_source(source(i))).collect()
}

fn expected(requests: &[GenerateRequest]) -> Vec<Vec<u32>> {
    let of = |r: &GenerateRequest| {
        let history = [r.source.clone().unwrap(), r.prompt.clone()].concat();
        FakeModel::greedy(&history, r.sampling.max_tokens, VOCAB_SIZE)
    };
    requests.iter().map(of).collect()
}

#[test]
fn equal_targets_of_different_sources_share_nothing() {
    let requests = requests(32);
    for (num_blocks, budget) in [(4096, 256), (41, 256), (12, 256), (41, 3)] {
        let config = SchedulerConfig { max_num_batched_tokens: Some(budget), ..SchedulerConfig::default() };
        let engine = EngineHandle::spawn(Box::new(FakeRunner::new(source_limits(num_blocks))), config);
        // Twice, so that a prefix cache would hit and a leaked page would be missed.
        for _ in 0..2 {
            let answers = run_together(&engine, &requests);
            assert_eq!(texts(&answers), expected(&requests), "{num_blocks} pages, budget {budget}");
            assert!(answers.iter().all(|a| a.num_cached_tokens == 0));
        }
        assert_no_leak(&engine);
    }
}

#[test]
fn a_preempted_translation_is_encoded_again() {
    let requests: Vec<_> = (0..16).map(|i| request(&[2, 9], greedy(60)).with_source(source(i))).collect();
    let limits = RunnerLimits { num_blocks: 40, ..source_limits(4096) };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), SchedulerConfig::default());
    assert_eq!(texts(&run_together(&engine, &requests)), expected(&requests));
    assert!(settled(&engine).num_preemptions > 0, "the pool is small enough to force preemption");
    assert_no_leak(&engine);
}

#[test]
fn aborted_translations_give_their_source_pages_back() {
    // Room for one source of full length at a time.
    let engine =
        EngineHandle::spawn(Box::new(FakeRunner::new(source_limits(11))), SchedulerConfig::default());
    for i in 0..20 {
        let mut generation =
            engine.submit(request(&[2, 9], greedy(400)).with_source(source(3 * i + 39))).unwrap();
        let _ = generation.blocking_next();
        drop(generation);
    }
    let last = requests(1);
    assert_eq!(texts(&run_together(&engine, &last)), expected(&last));
    assert_no_leak(&engine);
}

#[test]
fn sources_are_checked_before_they_are_queued() {
    let refused = |limits: RunnerLimits, request: GenerateRequest| {
        let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), SchedulerConfig::default());
        match engine.submit(request) {
            Err(EngineError::InvalidRequest { message, param }) => {
                assert_eq!(param.as_deref(), Some("source"));
                message
            }
            other => panic!("{other:?}"),
        }
    };
    let plain = || request(&[2, 9], greedy(4));
    assert!(refused(limits(), plain().with_source(vec![1])).contains("no encoder"));
    let with_encoder = source_limits(4096);
    assert!(refused(with_encoder, plain()).contains("a source is needed"));
    assert!(refused(with_encoder, plain().with_source(vec![])).contains("at least one token"));
    assert!(refused(with_encoder, plain().with_source(vec![61])).contains("61 tokens"));
    assert!(refused(with_encoder, plain().with_source(vec![1; 41])).contains("it can have 40"));
    assert!(refused(source_limits(6), plain().with_source(vec![1; 21])).contains("it can have 20"));
}
