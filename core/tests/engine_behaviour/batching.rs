//! A request's text does not depend on what runs beside it.

use super::*;

const NUM_TOKENS: usize = 40;

fn requests() -> Vec<GenerateRequest> {
    prompts(64).iter().enumerate().map(|(i, p)| request(p, greedy(1 + (i * 7) % NUM_TOKENS))).collect()
}

fn expected(requests: &[GenerateRequest]) -> Vec<Vec<u32>> {
    requests.iter().map(|r| FakeModel::greedy(&r.prompt, r.sampling.max_tokens, VOCAB_SIZE)).collect()
}

#[test]
fn sixty_four_concurrent_requests_give_the_text_of_one_at_a_time() {
    let requests = requests();
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    assert_eq!(texts(&run_together(&engine, &requests)), expected(&requests));
    assert_eq!(
        texts(&run_alone(limits(), &SchedulerConfig::default(), &requests[..8])),
        expected(&requests[..8])
    );
    assert_no_leak(&engine);
}

#[test]
fn any_token_budget_gives_the_same_text() {
    let requests = requests();
    for budget in [1, 2, 3, 7, 16, 100] {
        for max_num_seqs in [1, 5, 64] {
            let config = SchedulerConfig {
                max_num_batched_tokens: Some(budget),
                max_num_seqs: Some(max_num_seqs),
                ..SchedulerConfig::default()
            };
            let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), config);
            assert_eq!(texts(&run_together(&engine, &requests)), expected(&requests), "budget {budget}");
            assert_no_leak(&engine);
        }
    }
}

#[test]
fn preemption_gives_the_same_text() {
    let requests = requests();
    for enable_prefix_caching in [false, true] {
        for has_recurrent_state in [false, true] {
            let limits = RunnerLimits { num_blocks: 40, has_recurrent_state, ..limits() };
            let config = SchedulerConfig { enable_prefix_caching, ..SchedulerConfig::default() };
            let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits).with_snapshots(3)), config);
            assert_eq!(texts(&run_together(&engine, &requests)), expected(&requests));
            assert!(settled(&engine).num_preemptions > 0, "the pool is small enough to force preemption");
            assert_no_leak(&engine);
        }
    }
}

#[test]
fn a_request_that_needs_every_page_runs() {
    let limits = RunnerLimits { num_blocks: 11, ..limits() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), SchedulerConfig::default());
    let prompt = vec![5; 30];
    let both = [request(&prompt, greedy(100)), request(&prompt, greedy(100))];
    for found in run_together(&engine, &both) {
        assert_eq!(found.tokens, FakeModel::greedy(&prompt, 10, VOCAB_SIZE));
        assert_eq!(found.reason, Some(FinishReason::Length), "the KV cache holds 40 tokens");
    }
    assert_no_leak(&engine);
}

#[test]
fn a_running_request_decodes_in_every_step_of_a_long_prefill() {
    let (log, steps) = std::sync::mpsc::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let runner = FakeRunner::new(limits()).with_hook(move |batch, _| {
        let rows: Vec<_> = batch.seqs.iter().map(|s| (s.num_computed, s.num_tokens)).collect();
        let _ = log.send(rows);
        let _ = wait.recv();
        Ok(())
    });
    let config = SchedulerConfig { max_num_batched_tokens: Some(10), ..SchedulerConfig::default() };
    let engine = EngineHandle::spawn(Box::new(runner), config);
    let mut short = engine.submit(request(&[1, 2], greedy(40))).unwrap();
    // The first step has begun, and does not end before the second request is there.
    assert_eq!(steps.recv().unwrap(), [(0, 2)]);
    let mut long = engine.submit(request(&[3; 100], greedy(1))).unwrap();
    drop(go);
    answer(&mut short);
    answer(&mut long);
    // The runner, and with it the log, ends with the last handle.
    drop((short, long, engine));
    let mixed: Vec<_> = steps.into_iter().filter(|rows| rows.len() == 2).collect();
    let chunks: Vec<_> = mixed.iter().map(|rows| rows[1].1).collect();
    assert_eq!(chunks, [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 1]);
    assert!(mixed.iter().all(|rows| rows[0].1 == 1), "decode rows come first");
}

#[test]
fn a_prompt_that_can_never_fit_is_refused_at_submit() {
    let small_pool = RunnerLimits { num_blocks: 5, ..limits() };
    let short_context = RunnerLimits { max_model_len: 16, ..limits() };
    for limits in [small_pool, short_context] {
        let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), SchedulerConfig::default());
        let error = engine.submit(request(&[1; 16], greedy(1))).unwrap_err();
        assert!(
            matches!(&error, EngineError::InvalidRequest { param: Some(p), .. } if p == "prompt"),
            "{error}"
        );
        let fits = answer(&mut engine.submit(request(&[1; 15], greedy(9))).unwrap());
        assert_eq!((fits.tokens.len(), fits.reason), (1, Some(FinishReason::Length)));
    }
}

#[test]
fn invalid_requests_are_refused_at_submit() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    for bad in [
        request(&[], greedy(1)),
        request(&[VOCAB_SIZE as u32], greedy(1)),
        request(&[1], SamplingParams { top_p: 2.0, ..greedy(1) }),
    ] {
        assert!(matches!(engine.submit(bad), Err(EngineError::InvalidRequest { .. })));
    }
    assert_no_leak(&engine);
}
