//! How a generation ends, and that a seed is all that chance depends on.

use super::*;

fn engine(config: SchedulerConfig) -> EngineHandle {
    EngineHandle::spawn(Box::new(FakeRunner::new(limits())), config)
}

const PROMPT: [u32; 5] = [1, 2, 3, 4, 5];

fn text(num: usize) -> Vec<u32> {
    FakeModel::greedy(&PROMPT, num, VOCAB_SIZE)
}

/// Length of the greedy text up to and with the first occurrence of its `index`-th token.
fn up_to(index: usize) -> usize {
    let text = text(index + 1);
    1 + text.iter().position(|t| *t == text[index]).unwrap()
}

#[test]
fn max_tokens_ends_with_length() {
    let found = answer(&mut engine(SchedulerConfig::default()).submit(request(&PROMPT, greedy(7))).unwrap());
    assert_eq!((found.tokens, found.reason), (text(7), Some(FinishReason::Length)));
}

#[test]
fn the_models_end_of_sequence_ends_it_unless_ignored() {
    let eos = text(10)[9];
    let engine = engine(SchedulerConfig { eos_token_ids: vec![60, eos], ..SchedulerConfig::default() });
    let found = answer(&mut engine.submit(request(&PROMPT, greedy(30))).unwrap());
    assert_eq!(found.reason, Some(FinishReason::Stop { token: None }));
    assert!(found.tokens.len() <= 10);

    let ignoring = SamplingParams { ignore_eos: true, ..greedy(30) };
    let found = answer(&mut engine.submit(request(&PROMPT, ignoring)).unwrap());
    assert_eq!((found.tokens, found.reason), (text(30), Some(FinishReason::Length)));
}

#[test]
fn a_stop_token_ends_it_and_is_named() {
    let stop = text(10)[9];
    let params = SamplingParams { stop_token_ids: vec![stop], ..greedy(30) };
    let found = answer(&mut engine(SchedulerConfig::default()).submit(request(&PROMPT, params)).unwrap());
    assert_eq!(found.tokens, text(up_to(9)));
    assert_eq!(found.reason, Some(FinishReason::Stop { token: Some(stop) }));
}

#[test]
fn no_end_is_sampled_before_min_tokens() {
    let stop = text(1)[0];
    let params = SamplingParams { stop_token_ids: vec![stop], min_tokens: 12, ..greedy(30) };
    let found = answer(&mut engine(SchedulerConfig::default()).submit(request(&PROMPT, params)).unwrap());
    assert!(found.tokens.len() >= 12);
    assert!(!found.tokens[..12].contains(&stop));
}

#[test]
fn a_seeded_request_gives_the_same_text_whatever_else_runs() {
    let requests: Vec<_> = prompts(48)
        .iter()
        .enumerate()
        .map(|(i, p)| {
            let sampling = SamplingParams {
                temperature: 0.5 + (i % 3) as f32 * 0.5,
                top_p: [1.0, 0.9][i % 2],
                top_k: [0, 10, 3][i % 3],
                min_p: [0.0, 0.05][i / 2 % 2],
                repetition_penalty: [1.0, 1.2][i / 3 % 2],
                frequency_penalty: [0.0, 0.3][i / 5 % 2],
                seed: Some(i as u64),
                max_tokens: 30,
                ..SamplingParams::default()
            };
            request(p, sampling)
        })
        .collect();
    let alone = texts(&run_alone(limits(), &SchedulerConfig::default(), &requests));
    for num_blocks in [4096, 50] {
        let limits = RunnerLimits { num_blocks, ..limits() };
        let config = SchedulerConfig { max_num_batched_tokens: Some(70), ..SchedulerConfig::default() };
        let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), config);
        assert_eq!(texts(&run_together(&engine, &requests)), alone);
        let reversed: Vec<_> = requests.iter().rev().cloned().collect();
        let mut found = texts(&run_together(&engine, &reversed));
        found.reverse();
        assert_eq!(found, alone);
    }
}

#[test]
fn requests_without_a_seed_differ_and_the_engines_seed_repeats_them() {
    let run = |seed| {
        let engine = engine(SchedulerConfig { seed: Some(seed), ..SchedulerConfig::default() });
        let unseeded = SamplingParams { max_tokens: 20, ..SamplingParams::default() };
        texts(&run_together(&engine, &[request(&PROMPT, unseeded.clone()), request(&PROMPT, unseeded)]))
    };
    let first = run(1);
    assert_ne!(first[0], first[1]);
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
}

#[test]
fn penalties_survive_preemption() {
    let params = SamplingParams { repetition_penalty: 1.5, presence_penalty: 1.0, ..greedy(30) };
    let requests: Vec<_> = prompts(24).iter().map(|p| request(p, params.clone())).collect();
    let alone = texts(&run_alone(limits(), &SchedulerConfig::default(), &requests));
    let small = RunnerLimits { num_blocks: 40, ..limits() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(small)), SchedulerConfig::default());
    assert_eq!(texts(&run_together(&engine, &requests)), alone);
    assert!(settled(&engine).num_preemptions > 0);
}

#[test]
fn no_run_of_tokens_repeats_that_must_not() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let sampling = SamplingParams { no_repeat_ngram_size: 1, ..greedy(40) };
    let output = texts(&run_together(&engine, &[request(&[1, 2, 3], sampling)])).remove(0);
    let all: std::collections::HashSet<u32> = [1, 2, 3].into_iter().chain(output).collect();
    assert_eq!(all.len(), 43, "every token of prompt and output is another");

    // A model that always says the same: no pair of tokens comes twice.
    let same = FakeRunner::new(limits()).with_hook(|_, logits| {
        logits.data.chunks_mut(VOCAB_SIZE).for_each(|row| (0..).zip(row).for_each(|(i, l)| *l = -(i as f32)));
        Ok(())
    });
    let engine = EngineHandle::spawn(Box::new(same), SchedulerConfig::default());
    let sampling = SamplingParams { no_repeat_ngram_size: 2, ..greedy(5) };
    assert_eq!(texts(&run_together(&engine, &[request(&[0], sampling)])), [[0, 1, 0, 2, 0]]);
}
