//! Exact small cases and distributions of the sampler.

use super::*;

const NO_EOS: &[u32] = &[];

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

fn token(logits: &[f32], state: &SamplingState, position: usize) -> u32 {
    Sampler::default().sample(logits, state, position).unwrap().token
}

/// How often each token is chosen over `n` positions.
fn histogram(logits: &[f32], params: &SamplingParams, n: usize) -> Vec<u32> {
    let state = SamplingState::new(params.clone(), 7, &[], NO_EOS);
    let mut sampler = Sampler::default();
    let mut counts = vec![0; logits.len()];
    for position in 0..n {
        counts[sampler.sample(logits, &state, position).unwrap().token as usize] += 1;
    }
    counts
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|l| f64::from(l / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// Compares counts with probabilities; tokens of probability 0 must not occur at all.
fn assert_distribution(counts: &[u32], probabilities: &[f64]) {
    let n: f64 = counts.iter().map(|&c| f64::from(c)).sum();
    let total: f64 = probabilities.iter().sum();
    let mut chi_square = 0.0;
    let mut degrees = -1.0;
    for (&count, &p) in counts.iter().zip(probabilities) {
        if p == 0.0 {
            assert_eq!(count, 0, "a dropped token was chosen: {counts:?}");
            continue;
        }
        let expected = n * p / total;
        chi_square += (f64::from(count) - expected).powi(2) / expected;
        degrees += 1.0;
    }
    // Mean plus five standard deviations of the chi-square distribution.
    let bound = degrees + 5.0 * (2.0_f64 * degrees).sqrt();
    assert!(chi_square <= bound, "chi-square {chi_square} above {bound}: {counts:?}");
}

const LOGITS: [f32; 8] = [0.0, 1.0, 2.0, -1.0, 0.5, 2.0, -3.0, 1.5];

#[test]
fn greedy_takes_the_most_likely_token_and_the_lowest_id_among_equals() {
    let state = SamplingState::new(greedy(), 0, &[], NO_EOS);
    assert_eq!(token(&LOGITS, &state, 0), 2);
}

#[test]
fn a_temperature_below_the_limit_is_greedy() {
    let params = SamplingParams { temperature: 9e-6, ..greedy() };
    assert_eq!(histogram(&[0.0, 1e-6, 0.0], &params, 50), [0, 50, 0]);
}

#[test]
fn plain_sampling_follows_the_softmax() {
    for temperature in [0.5, 1.0, 2.0] {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        assert_distribution(&histogram(&LOGITS, &params, 20_000), &softmax(&LOGITS, temperature));
    }
}

#[test]
fn a_large_vocabulary_follows_the_softmax() {
    let logits: Vec<f32> = (0..5000).map(|i| ((i * 37) % 11) as f32 * 0.3).collect();
    let counts = histogram(&logits, &SamplingParams::default(), 20_000);
    let mut by_level = [0; 11];
    let mut probabilities = [0.0; 11];
    for (i, p) in softmax(&logits, 1.0).into_iter().enumerate() {
        by_level[(i * 37) % 11] += counts[i];
        probabilities[(i * 37) % 11] += p;
    }
    assert_distribution(&by_level, &probabilities);
}

#[test]
fn top_k_keeps_ties_with_the_kth() {
    let mut expected = softmax(&LOGITS, 1.0);
    for dropped in [0, 1, 3, 4, 6, 7] {
        expected[dropped] = 0.0;
    }
    for top_k in [1, 2] {
        let params = SamplingParams { top_k, ..SamplingParams::default() };
        assert_distribution(&histogram(&LOGITS, &params, 4000), &expected);
    }
}

#[test]
fn top_p_acts_on_the_tempered_distribution() {
    // Tempered by 0.5: logits 4, 4, 3, 2, ... carry 0.3957, 0.3957, 0.1456, 0.0536, ...
    let params = SamplingParams { temperature: 0.5, top_p: 0.9, ..SamplingParams::default() };
    let mut expected = softmax(&LOGITS, 0.5);
    for dropped in [0, 1, 3, 4, 6] {
        expected[dropped] = 0.0;
    }
    assert_distribution(&histogram(&LOGITS, &params, 4000), &expected);
}

#[test]
fn top_p_acts_on_what_top_k_left() {
    // Among the two kept, each has half the mass: 0.5 is reached by one alone.
    let logits = [0.0, 1.0, 1.0 + 1e-3, 0.0];
    let params = SamplingParams { top_k: 2, top_p: 0.5, ..SamplingParams::default() };
    assert_eq!(histogram(&logits, &params, 100), [0, 0, 100, 0]);
}

#[test]
fn min_p_is_relative_to_the_most_likely_token() {
    let logits = [0.0_f32, 0.4_f32.ln(), 0.6_f32.ln(), 0.1_f32.ln()];
    let params = SamplingParams { min_p: 0.5, ..SamplingParams::default() };
    assert_distribution(&histogram(&logits, &params, 4000), &[1.0, 0.0, 0.6, 0.0]);
}

#[test]
fn a_seeded_draw_does_not_depend_on_what_was_sampled_before() {
    let state = SamplingState::new(SamplingParams::default(), 99, &[], NO_EOS);
    let alone: Vec<u32> = (0..50).map(|p| token(&LOGITS, &state, p)).collect();
    let other =
        SamplingState::new(SamplingParams { top_p: 0.7, ..SamplingParams::default() }, 5, &[], NO_EOS);
    let mut sampler = Sampler::default();
    for position in (0..50).rev() {
        sampler.sample(&[1.0; 300], &other, position).unwrap();
        assert_eq!(sampler.sample(&LOGITS, &state, position).unwrap().token, alone[position]);
    }
}

#[test]
fn ends_are_masked_until_min_tokens() {
    let params = SamplingParams { min_tokens: 2, stop_token_ids: vec![5], ..greedy() };
    let mut state = SamplingState::new(params, 0, &[], &[2]);
    assert_eq!(token(&LOGITS, &state, 0), 7);
    state.record(7);
    assert_eq!(token(&LOGITS, &state, 1), 7);
    state.record(7);
    assert_eq!(token(&LOGITS, &state, 2), 2);
}

#[test]
fn a_bias_cannot_unmask_an_end() {
    let params = SamplingParams { min_tokens: 1, logit_bias: vec![(2, 100.0), (6, 50.0)], ..greedy() };
    assert_eq!(token(&LOGITS, &SamplingState::new(params, 0, &[], &[2]), 0), 6);
}

#[test]
fn penalties_follow_their_formulas_in_order() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        frequency_penalty: 0.25,
        presence_penalty: 0.5,
        logit_bias: vec![(0, 1.0)],
        ..greedy()
    };
    let mut state = SamplingState::new(params, 0, &[0, 3], NO_EOS);
    for t in [1, 1, 2] {
        state.record(t);
    }
    let mut logits = [3.0, 4.0, -1.0, -2.0, 1.0];
    state.process(&mut logits);
    let expected = [
        4.0 / 2.0,                    // prompt only: bias, then repetition
        4.0 / 2.0 - 2.0 * 0.25 - 0.5, // twice in the output
        -2.0 - 0.25 - 0.5,            // once in the output, negative
        -2.0 * 2.0,                   // prompt only, negative
        1.0,                          // never seen
    ];
    assert_eq!(logits, expected);
}

#[test]
fn frequency_and_presence_ignore_the_prompt() {
    let params = SamplingParams { frequency_penalty: 1.0, presence_penalty: 1.0, ..greedy() };
    assert_eq!(token(&LOGITS, &SamplingState::new(params, 0, &[2, 2], NO_EOS), 0), 2);
}

#[test]
fn logprobs_come_from_the_raw_logits() {
    let params =
        SamplingParams { logprobs: Some(1), logit_bias: vec![(6, 100.0)], temperature: 0.7, ..greedy() };
    let state = SamplingState::new(params, 0, &[], NO_EOS);
    let sampled = Sampler::default().sample(&LOGITS, &state, 0).unwrap();
    let logprobs = sampled.logprobs.unwrap();
    assert_eq!((sampled.token, logprobs.chosen.token, logprobs.chosen.rank), (6, 6, 8));
    assert!((f64::from(logprobs.chosen.logprob) - softmax(&LOGITS, 1.0)[6].ln()).abs() < 1e-5);
    assert_eq!(logprobs.top[0].token, 2);
}

#[test]
fn a_broken_row_is_an_error_for_every_way_to_sample() {
    let ways = [
        greedy(),
        SamplingParams::default(),
        SamplingParams { top_k: 2, top_p: 0.5, ..SamplingParams::default() },
        SamplingParams { logit_bias: vec![(3, -100.0)], ..greedy() },
    ];
    for params in ways {
        let state = SamplingState::new(params, 0, &[], NO_EOS);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut logits = LOGITS;
            logits[3] = value;
            let error = Sampler::default().sample(&logits, &state, 9).unwrap_err();
            assert!(matches!(error, SampleError::NonFinite { token: 3, position: 9, .. }), "{error}");
        }
    }
}

#[test]
fn masking_everything_is_an_error() {
    let params = SamplingParams { min_tokens: 1, stop_token_ids: vec![0, 1], ..SamplingParams::default() };
    let state = SamplingState::new(params, 0, &[], NO_EOS);
    let error = Sampler::default().sample(&[0.0, 1.0], &state, 4).unwrap_err();
    assert_eq!(error, SampleError::NothingLeft { position: 4 });
}
