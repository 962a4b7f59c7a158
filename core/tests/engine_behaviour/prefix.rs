//! Prefix caching changes the work, never the text.

use super::*;

fn config(enable_prefix_caching: bool) -> SchedulerConfig {
    SchedulerConfig { enable_prefix_caching, ..SchedulerConfig::default() }
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 11) % 61).collect()
}

fn cached(engine: &EngineHandle, prompt: &[u32]) -> usize {
    let found = answer(&mut engine.submit(request(prompt, greedy(6))).unwrap());
    assert_eq!(found.tokens, FakeModel::greedy(prompt, 6, VOCAB_SIZE), "{:?}", found.error);
    found.num_cached_tokens
}

#[test]
fn a_repeated_prefix_is_found_up_to_its_last_full_page() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), config(true));
    assert_eq!(cached(&engine, &prompt(18)), 0);
    assert_eq!(cached(&engine, &prompt(18)), 16);
    assert_eq!(cached(&engine, &prompt(16)), 12, "the last prompt token is always computed");
    assert_eq!(cached(&engine, &prompt(17)), 16);
    assert_eq!(cached(&engine, &[prompt(10), vec![60; 10]].concat()), 8);
    assert_no_leak(&engine);
}

#[test]
fn output_is_part_of_the_prefix_for_the_next_turn() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), config(true));
    let first = prompt(10);
    cached(&engine, &first);
    let second = [first.clone(), FakeModel::greedy(&first, 6, VOCAB_SIZE), vec![7, 8, 9]].concat();
    // 15 tokens were computed: the last sampled one was not.
    assert_eq!(cached(&engine, &second), 12);
}

#[test]
fn a_prefill_that_was_cut_short_shares_only_what_it_computed() {
    let (log, steps) = std::sync::mpsc::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let runner = FakeRunner::new(limits()).with_hook(move |_, _| {
        let _ = log.send(());
        let _ = wait.recv();
        Ok(())
    });
    let config = SchedulerConfig { max_num_batched_tokens: Some(6), ..config(true) };
    let engine = EngineHandle::spawn(Box::new(runner), config);
    let first = engine.submit(request(&prompt(20), greedy(6))).unwrap();
    steps.recv().unwrap();
    // One and a half pages are being computed when the request goes away.
    drop(first);
    drop(go);
    assert_eq!(cached(&engine, &prompt(20)), 4);
    assert_no_leak(&engine);
}

#[test]
fn switched_off_it_finds_nothing() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), config(false));
    assert_eq!((cached(&engine, &prompt(18)), cached(&engine, &prompt(18))), (0, 0));
}

#[test]
fn on_or_off_gives_the_same_text_under_eviction() {
    let requests: Vec<_> = prompts(64).iter().map(|p| request(p, greedy(20))).collect();
    let expected: Vec<_> = requests.iter().map(|r| FakeModel::greedy(&r.prompt, 20, VOCAB_SIZE)).collect();
    for enable_prefix_caching in [false, true] {
        let limits = RunnerLimits { num_blocks: 60, ..limits() };
        let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), config(enable_prefix_caching));
        for round in 0..3 {
            let answers = run_together(&engine, &requests);
            assert_eq!(texts(&answers), expected, "round {round}");
            let has_hits = answers.iter().any(|a| a.num_cached_tokens > 0);
            assert_eq!(has_hits, enable_prefix_caching);
        }
        assert_no_leak(&engine);
    }
}

#[test]
fn a_recurrent_model_without_snapshots_has_no_hits() {
    let limits = RunnerLimits { has_recurrent_state: true, ..limits() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), config(true));
    assert_eq!((cached(&engine, &prompt(18)), cached(&engine, &prompt(18))), (0, 0));
}

#[test]
fn a_recurrent_model_with_snapshots_is_hit_at_first_reuse() {
    let limits = RunnerLimits { has_recurrent_state: true, ..limits() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits).with_snapshots(2)), config(true));
    assert_eq!(cached(&engine, &prompt(18)), 0);
    assert_eq!(cached(&engine, &prompt(18)), 16);
    // A longer prompt starts from the snapshot too, and leaves one of its own.
    assert_eq!(cached(&engine, &prompt(30)), 16);
    assert_eq!(cached(&engine, &prompt(30)), 28);
    // A cut inside the prefix has pages but no state.
    assert_eq!(cached(&engine, &prompt(12)), 0);
    assert_no_leak(&engine);
}

#[test]
fn snapshots_under_pressure_never_change_the_text() {
    let limits = RunnerLimits { has_recurrent_state: true, num_blocks: 60, ..limits() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits).with_snapshots(2)), config(true));
    let requests: Vec<_> = prompts(64).iter().map(|p| request(p, greedy(20))).collect();
    let expected: Vec<_> = requests.iter().map(|r| FakeModel::greedy(&r.prompt, 20, VOCAB_SIZE)).collect();
    for _ in 0..3 {
        assert_eq!(texts(&run_together(&engine, &requests)), expected);
    }
    assert_no_leak(&engine);
}
