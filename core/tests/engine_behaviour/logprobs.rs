//! Log-probabilities, of output and prompt, however the prompt was cut into chunks.

use super::*;

fn params(num: u32, max_tokens: usize) -> SamplingParams {
    SamplingParams { logprobs: Some(num), prompt_logprobs: Some(num), ..greedy(max_tokens) }
}

/// Log-softmax of the fake model after `history`.
fn distribution(history: &[u32]) -> Vec<f64> {
    let mut model = FakeModel::default();
    for token in history {
        model.push(*token);
    }
    let logits: Vec<f64> = model.logits(VOCAB_SIZE).map(f64::from).collect();
    let log_sum = logits.iter().map(|l| l.exp()).sum::<f64>().ln();
    logits.iter().map(|l| l - log_sum).collect()
}

fn assert_position(found: &PositionLogprobs, token: u32, history: &[u32], num: usize) {
    let expected = distribution(history);
    assert_eq!(found.chosen.token, token);
    for entry in found.top.iter().chain([&found.chosen]) {
        let logprob = expected[entry.token as usize];
        assert!((f64::from(entry.logprob) - logprob).abs() < 1e-4);
        assert_eq!(entry.rank as usize, 1 + expected.iter().filter(|l| **l > logprob).count());
    }
    let ranks: Vec<_> = found.top.iter().map(|t| t.rank as usize).collect();
    assert_eq!(ranks, (1..=num).collect::<Vec<_>>());
}

fn assert_answer(found: &Answer, prompt: &[u32], num: usize) {
    assert_eq!(found.error, None);
    let all = [prompt, &found.tokens].concat();
    let prompt_logprobs = found.prompt_logprobs.as_ref().unwrap();
    assert_eq!(prompt_logprobs.len(), prompt.len());
    assert_eq!(prompt_logprobs[0], None);
    for (at, entry) in prompt_logprobs.iter().enumerate().skip(1) {
        assert_position(entry.as_ref().unwrap(), prompt[at], &prompt[..at], num);
    }
    for (i, entry) in found.logprobs.iter().enumerate() {
        let at = prompt.len() + i;
        assert_position(entry, all[at], &all[..at], num);
    }
}

#[test]
fn every_position_is_reported_whatever_the_chunks() {
    let requests: Vec<_> = prompts(24).iter().map(|p| request(p, params(3, 5))).collect();
    for (budget, max_prompt_logprobs_rows) in [(256, 64), (256, 5), (7, 64), (30, 1)] {
        let config = SchedulerConfig {
            max_num_batched_tokens: Some(budget),
            max_prompt_logprobs_rows,
            ..SchedulerConfig::default()
        };
        let most_rows = max_prompt_logprobs_rows + limits().max_num_seqs;
        let runner = FakeRunner::new(limits()).with_hook(move |batch, _| {
            if batch.logits_rows.len() > most_rows {
                Err(device_error("too many logits rows"))
            } else {
                Ok(())
            }
        });
        let engine = EngineHandle::spawn(Box::new(runner), config);
        for (found, r) in run_together(&engine, &requests).iter().zip(&requests) {
            assert_eq!((found.tokens.len(), found.logprobs.len()), (5, 5));
            assert_answer(found, &r.prompt, 3);
        }
        assert_no_leak(&engine);
    }
}

#[test]
fn cached_prompts_and_preemption_lose_no_position() {
    let limits = RunnerLimits { num_blocks: 40, ..limits() };
    let config = SchedulerConfig { max_prompt_logprobs_rows: 16, ..SchedulerConfig::default() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), config);
    let requests: Vec<_> = prompts(32).iter().map(|p| request(p, params(2, 25))).collect();
    for _ in 0..2 {
        for (found, r) in run_together(&engine, &requests).iter().zip(&requests) {
            assert_answer(found, &r.prompt, 2);
            assert_eq!(found.num_cached_tokens, 0, "cached positions have no logits");
        }
    }
    assert!(settled(&engine).num_preemptions > 0);
}

#[test]
fn a_prompt_can_be_scored_without_generating() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let prompt = &prompts(5)[4];
    let found = answer(&mut engine.submit(request(prompt, params(1, 0))).unwrap());
    assert_answer(&found, prompt, 1);
    assert_eq!((found.tokens.len(), found.reason), (0, Some(FinishReason::Length)));
}

#[test]
fn logprobs_do_not_change_the_text() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let prompt = &prompts(3)[2];
    let found = answer(&mut engine.submit(request(prompt, params(5, 20))).unwrap());
    assert_eq!(found.tokens, FakeModel::greedy(prompt, 20, VOCAB_SIZE));
}
