//! Drafts change how many steps a text takes, and nothing about the text.

use metrale_core::speculative::{DraftMethod, DraftStats, SpeculativeConfig};
use proptest::prelude::*;

use super::*;

fn drafting(num_speculative_tokens: usize) -> SchedulerConfig {
    let speculative = SpeculativeConfig { method: DraftMethod::Mtp, num_speculative_tokens };
    SchedulerConfig { speculative: Some(speculative), ..SchedulerConfig::default() }
}

fn limits() -> RunnerLimits {
    RunnerLimits { max_num_drafts: 3, has_recurrent_state: true, ..super::limits() }
}

/// An engine whose drafter is right this often.
fn engine(limits: RunnerLimits, config: SchedulerConfig, percent_right: u64) -> EngineHandle {
    let runner = FakeRunner::new(limits).with_snapshots(3).with_drafter(percent_right);
    EngineHandle::spawn(Box::new(runner), config)
}

fn requests(num: usize) -> Vec<GenerateRequest> {
    prompts(num).iter().enumerate().map(|(i, p)| request(p, greedy(1 + (i * 7) % 40))).collect()
}

fn expected(requests: &[GenerateRequest]) -> Vec<Vec<u32>> {
    requests.iter().map(|r| FakeModel::greedy(&r.prompt, r.sampling.max_tokens, VOCAB_SIZE)).collect()
}

/// Sampling of every kind.
fn sampled(num: usize) -> Vec<GenerateRequest> {
    let params = |i: usize| SamplingParams {
        temperature: 0.2 + (i % 3) as f32 * 0.4,
        top_p: [1.0, 0.9][i % 2],
        top_k: [0, 10, 3][i % 3],
        min_p: [0.0, 0.05][i / 2 % 2],
        repetition_penalty: [1.0, 1.2][i / 3 % 2],
        frequency_penalty: [0.0, 0.3][i / 5 % 2],
        presence_penalty: [0.0, 0.5][i / 7 % 2],
        min_tokens: [0, 9][i % 2],
        stop_token_ids: (0..3).collect(),
        logprobs: [None, Some(3)][i / 2 % 2],
        prompt_logprobs: [None, None, Some(1)][i % 3],
        seed: Some(i as u64),
        max_tokens: 30,
        ..SamplingParams::default()
    };
    prompts(num).iter().enumerate().map(|(i, p)| request(p, params(i))).collect()
}

/// What must not depend on drafts.
fn essence(answers: &[Answer]) -> Vec<Answer> {
    answers.iter().map(|a| Answer { num_cached_tokens: 0, ..a.clone() }).collect()
}

#[test]
fn right_drafts_save_steps_and_wrong_ones_cost_none() {
    // The prompt's step gives one token, the others four or one.
    for (percent_right, num_steps) in [(100, 1 + 10), (0, 1 + 39)] {
        let (log, steps) = std::sync::mpsc::channel();
        let runner = FakeRunner::new(limits()).with_drafter(percent_right).with_hook(move |_, _| {
            let _ = log.send(());
            Ok(())
        });
        let engine = EngineHandle::spawn(Box::new(runner), drafting(3));
        let found = answer(&mut engine.submit(request(&[1, 2, 3], greedy(40))).unwrap());
        assert_eq!(found.tokens, FakeModel::greedy(&[1, 2, 3], 40, VOCAB_SIZE));
        let stats = settled(&engine).drafts;
        drop(engine);
        assert_eq!(steps.into_iter().count(), num_steps);
        assert_eq!(stats.num_accepted_tokens() > 0, percent_right == 100, "{stats:?}");
    }
}

#[test]
fn any_draft_length_and_budget_gives_the_same_text() {
    let requests = requests(64);
    for num_drafts in 1..=3 {
        for budget in [1, 2, 3, 7, 16, 256] {
            let config = SchedulerConfig { max_num_batched_tokens: Some(budget), ..drafting(num_drafts) };
            let engine = engine(limits(), config, 60);
            assert_eq!(texts(&run_together(&engine, &requests)), expected(&requests), "budget {budget}");
            assert_no_leak(&engine);
        }
    }
}

#[test]
fn preemption_and_eviction_give_the_same_text() {
    let requests = requests(64);
    for enable_prefix_caching in [false, true] {
        for num_blocks in [40, 60] {
            let config = SchedulerConfig { enable_prefix_caching, ..drafting(3) };
            let engine = engine(RunnerLimits { num_blocks, ..limits() }, config, 60);
            for round in 0..3 {
                let answers = run_together(&engine, &requests);
                assert_eq!(texts(&answers), expected(&requests), "round {round}");
                assert_eq!(answers.iter().any(|a| a.num_cached_tokens > 0), enable_prefix_caching);
            }
            let snapshot = settled(&engine);
            assert!(snapshot.num_preemptions > 0 && snapshot.drafts.num_accepted_tokens() > 0);
            assert_no_leak(&engine);
        }
    }
}

#[test]
fn sampling_and_everything_reported_about_it_do_not_depend_on_drafts() {
    let requests = sampled(48);
    let plain = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let without = run_together(&plain, &requests);
    let mut accepted = 0;
    for num_drafts in 1..=3 {
        for percent_right in [0, 50, 100] {
            let engine = engine(limits(), drafting(num_drafts), percent_right);
            assert_eq!(essence(&run_together(&engine, &requests)), essence(&without));
            accepted += settled(&engine).drafts.num_accepted_tokens();
        }
    }
    assert!(accepted > 100, "{accepted}");
    let ends: Vec<_> = without.iter().map(|a| a.reason).collect();
    assert!(ends.contains(&Some(FinishReason::Length)));
    assert!(ends.iter().any(|e| matches!(e, Some(FinishReason::Stop { token: Some(_) }))));
}

/// The three most likely tokens with their chances.
fn top_three(model: FakeModel) -> Vec<(u32, f64)> {
    let mut logits: Vec<(u32, f64)> = (0..).zip(model.logits(VOCAB_SIZE).map(f64::from)).collect();
    logits.sort_by(|a, b| b.1.total_cmp(&a.1));
    let total: f64 = logits[..3].iter().map(|l| l.1.exp()).sum();
    logits[..3].iter().map(|(token, l)| (*token, l.exp() / total)).collect()
}

#[test]
fn chance_is_the_models_own_with_drafts() {
    const NUM: usize = 4000;
    let prompt = [1, 2, 3];
    let sampling = SamplingParams { top_k: 3, max_tokens: 6, ..SamplingParams::default() };
    let requests = vec![request(&prompt, sampling); NUM];
    for percent_right in [50, 100] {
        let config = SchedulerConfig { seed: Some(5), ..drafting(2) };
        let engine = engine(limits(), config, percent_right);
        let found = texts(&run_together(&engine, &requests));
        let accepted = settled(&engine).drafts.num_accepted_tokens();
        assert!(percent_right < 100 || accepted > NUM as u64, "{accepted}");
        let mut chi_square = 0.0;
        let mut start = FakeModel::default();
        prompt.iter().for_each(|t| start.push(*t));
        for (a, chance_a) in top_three(start) {
            let mut after_a = start;
            after_a.push(a);
            for (b, chance_b) in top_three(after_a) {
                let mut after_b = after_a;
                after_b.push(b);
                for (c, chance_c) in top_three(after_b) {
                    let expected = NUM as f64 * chance_a * chance_b * chance_c;
                    let count = found.iter().filter(|text| text[..3] == [a, b, c]).count();
                    chi_square += (count as f64 - expected).powi(2) / expected;
                }
            }
        }
        // 26 degrees of freedom: 54.1 is exceeded once in a thousand.
        assert!(chi_square < 54.1, "{chi_square}");
    }
}

#[test]
fn a_stop_token_among_the_drafts_ends_the_text_there() {
    let prompt = [1, 2, 3, 4, 5];
    let text = FakeModel::greedy(&prompt, 20, VOCAB_SIZE);
    for (end, stop) in text.iter().enumerate().take(12) {
        let first = text.iter().position(|t| t == stop).unwrap();
        let eos = SchedulerConfig { eos_token_ids: vec![*stop], ..drafting(3) };
        let found = answer(&mut engine(limits(), eos, 100).submit(request(&prompt, greedy(20))).unwrap());
        assert_eq!(found.tokens, text[..=first], "end {end}");
        assert_eq!(found.reason, Some(FinishReason::Stop { token: None }));
    }
}

#[test]
fn the_limits_of_a_text_hold_with_drafts() {
    for max_model_len in 5..14 {
        let engine = engine(RunnerLimits { max_model_len, ..limits() }, drafting(3), 100);
        let found = answer(&mut engine.submit(request(&[7; 4], greedy(100))).unwrap());
        assert_eq!(found.tokens, FakeModel::greedy(&[7; 4], max_model_len - 4, VOCAB_SIZE));
        assert_eq!(found.reason, Some(FinishReason::Length));
        for max_tokens in 0..6.min(max_model_len - 3) {
            let found = answer(&mut engine.submit(request(&[7; 4], greedy(max_tokens))).unwrap());
            assert_eq!(found.tokens, FakeModel::greedy(&[7; 4], max_tokens, VOCAB_SIZE));
        }
        assert_no_leak(&engine);
    }
}

#[test]
fn drafts_leave_half_of_the_spare_rows_to_prompts() {
    let (log, steps) = std::sync::mpsc::channel();
    let runner = FakeRunner::new(limits()).with_drafter(100).with_hook(move |batch, _| {
        let rows: Vec<_> = batch.seqs.iter().map(|s| (s.num_tokens - s.num_drafts, s.num_drafts)).collect();
        let _ = log.send(rows);
        Ok(())
    });
    let config = SchedulerConfig { max_num_batched_tokens: Some(8), ..drafting(3) };
    let engine = EngineHandle::spawn(Box::new(runner), config);
    let requests: Vec<_> = (0..3).map(|i| request(&[i; 30], greedy(20))).collect();
    assert_eq!(texts(&run_together(&engine, &requests)), expected(&requests));
    drop(engine);
    let mut num_mixed = 0;
    for rows in steps {
        let num_drafts: usize = rows.iter().map(|r| r.1).sum();
        let num_known: usize = rows.iter().map(|r| r.0).sum();
        assert!(num_drafts + num_known <= 8);
        if rows.iter().any(|r| r.0 > 1) && num_drafts > 0 {
            let num_decoding = rows.iter().filter(|r| r.1 > 0).count();
            assert!(num_drafts <= (8 - num_decoding) / 2, "{rows:?}");
            num_mixed += 1;
        }
    }
    assert!(num_mixed > 0);
}

#[test]
fn a_thousand_aborts_between_drafts_leak_no_page() {
    let limits = RunnerLimits { num_blocks: 200, ..limits() };
    let engine = engine(limits, drafting(3), 70);
    let kept: Vec<_> = prompts(8).iter().map(|p| request(p, greedy(120))).collect();
    let mut generations: Vec<_> = kept.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let victims = prompts(63);
    for i in 0..1000 {
        let mut victim = engine.submit(request(&victims[i * 31 % 63], greedy(200))).unwrap();
        for _ in 0..i % 6 {
            victim.blocking_next();
        }
    }
    for (generation, kept) in generations.iter_mut().zip(&kept) {
        assert_eq!(answer(generation).tokens, FakeModel::greedy(&kept.prompt, 120, VOCAB_SIZE));
    }
    assert_no_leak(&engine);
}

#[test]
fn a_drafter_that_fails_ends_no_request() {
    let runner = FakeRunner::new(limits()).with_failing_drafter();
    let engine = EngineHandle::spawn(Box::new(runner), drafting(3));
    let requests = requests(8);
    assert_eq!(texts(&run_together(&engine, &requests)), expected(&requests));
    assert_eq!(settled(&engine).drafts, DraftStats::default());
    assert_no_leak(&engine);
}

#[test]
fn a_runner_without_a_drafter_runs_without_drafts() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), drafting(2));
    let requests = requests(8);
    assert_eq!(texts(&run_together(&engine, &requests)), expected(&requests));
    assert_eq!(settled(&engine).drafts, DraftStats::default());
}

#[test]
fn prompt_lookup_needs_no_drafter() {
    let method = DraftMethod::Ngram(metrale_core::speculative::ngram::NgramSizes { min: 1, max: 3 });
    let speculative = Some(SpeculativeConfig { method, num_speculative_tokens: 3 });
    let config = SchedulerConfig { speculative, ..SchedulerConfig::default() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), config);
    // Prompts that hold their own continuation, so that some drafts are right.
    let requests: Vec<_> = prompts(16)
        .iter()
        .map(|p| request(&[&p[..], &FakeModel::greedy(p, 3, VOCAB_SIZE), p].concat(), greedy(20)))
        .collect();
    assert_eq!(texts(&run_together(&engine, &requests)), expected(&requests));
    assert!(settled(&engine).drafts.num_draft_tokens > 0);
    assert_no_leak(&engine);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_runs_beside_it_a_text_is_that_of_one_token_at_a_time(
        num_drafts in 1..=3_usize,
        percent_right in 0..=100_u64,
        num_blocks in 30..200_usize,
        block_size in 1..9_usize,
        budget in 1..80_usize,
        max_num_seqs in 1..20_usize,
        has_recurrent_state: bool,
        enable_prefix_caching: bool,
        num_requests in 1..24_usize,
        aborted in proptest::collection::vec((0..24_usize, 0..9_usize), 0..6),
    ) {
        let limits = RunnerLimits {
            num_blocks: num_blocks.max(1 + 120_usize.div_ceil(block_size)),
            block_size,
            has_recurrent_state,
            ..limits()
        };
        let config = SchedulerConfig {
            enable_prefix_caching,
            max_num_batched_tokens: Some(budget),
            max_num_seqs: Some(max_num_seqs),
            ..drafting(num_drafts)
        };
        let engine = engine(limits, config, percent_right);
        let requests = requests(num_requests);
        let mut generations: Vec<_> = requests.iter().map(|r| Some(engine.submit(r.clone()).unwrap())).collect();
        for (which, after) in aborted {
            if let Some(mut generation) = generations.get_mut(which).and_then(Option::take) {
                (0..after).for_each(|_| drop(generation.blocking_next()));
            }
        }
        for (generation, expected) in generations.iter_mut().zip(expected(&requests)) {
            if let Some(generation) = generation {
                let found = answer(generation);
                prop_assert_eq!(found.error, None);
                prop_assert_eq!(found.tokens, expected);
            }
        }
        assert_no_leak(&engine);
    }
}
