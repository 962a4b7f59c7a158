use metrale_kernels::cpu::{conv as host_conv, delta_rule as host_delta};
use metrale_kernels::cuda::conv::SlotSequence;
use metrale_kernels::cuda::conv::{Conv1d, causal_conv1d};
use metrale_kernels::cuda::delta_rule::{DeltaInputs, DeltaShape, HeadMap, gated_delta_rule};
use metrale_kernels::cuda::elementwise::Unary;
use metrale_kernels::cuda::{Cuda, Element, Slots};

use crate::support::{Output, Rng, Tolerance, assert_close, cpu, for_elements, gpu, put, rounded};

const NUM_SLOTS: usize = 5;

/// Two steps of a batch: prompts, then continuations in other order.
fn steps() -> [Vec<SlotSequence>; 2] {
    let of = |all: &[(usize, usize)]| {
        all.iter().map(|&(num_tokens, slot)| SlotSequence { num_tokens, slot }).collect()
    };
    [of(&[(7, 3), (70, 2), (1, 0), (2, 4)]), of(&[(1, 4), (3, 3), (33, 1), (1, 0), (1, 2)])]
}

fn check_conv<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(1);
    for kernel in [1, 2, 4, 8] {
        for channels in [1, 100, 384] {
            let (weight, bias) = (rng.vec(channels * kernel), rng.vec(channels));
            let (device_weight, device_bias) = (put::<f32>(cuda, &weight), put::<f32>(cuda, &bias));
            let mut expected_state = rng.vec(NUM_SLOTS * (kernel - 1) * channels);
            let mut state = Output::<f32>::holding(cuda, &expected_state);
            let mut slots = Slots::new(cuda, 5).unwrap();
            for (step, sequences) in steps().iter().enumerate() {
                let activation = [Unary::Silu, Unary::Identity][step];
                let rows: usize = sequences.iter().map(|s| s.num_tokens).sum();
                let x = rounded::<T>(&rng.vec(rows * channels));
                let with_bias = step == 0;
                let host = host_conv::Conv1d {
                    weight: &weight,
                    bias: with_bias.then_some(&bias[..]),
                    kernel,
                    activation,
                };
                let mut expected = vec![0.0; x.len()];
                host_conv::causal_conv1d(cpu(), host, &x, sequences, &mut expected_state, &mut expected)
                    .unwrap();
                let conv = Conv1d {
                    weight: device_weight.view(),
                    bias: with_bias.then(|| device_bias.view()),
                    kernel,
                    activation,
                };
                slots.set(cuda, sequences, NUM_SLOTS).unwrap();
                let (input, mut out) = (put::<T>(cuda, &x), Output::<T>::new(cuda, x.len()));
                state
                    .write(|state| {
                        out.write(|out| causal_conv1d(cuda, conv, input.view(), &slots, state, out))
                    })
                    .unwrap();
                let what = format!("{name} kernel {kernel}, {channels} channels, step {step}");
                assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(2e-6, 1e-5), &what);
                let exact = Tolerance { absolute: 0.0, relative: 0.0 };
                assert_close(&state.read(cuda), &expected_state, exact, &what);
            }
        }
    }
}

fn check_delta<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(2);
    for (hk, hv, dk, dv) in
        [(1, 1, 16, 8), (2, 4, 64, 64), (2, 6, 100, 100), (4, 8, 128, 128), (1, 2, 256, 33)]
    {
        for (head_map, per_channel) in [(HeadMap::Grouped, false), (HeadMap::Tiled, true)] {
            let shape =
                DeltaShape { num_key_heads: hk, num_value_heads: hv, key_dim: dk, value_dim: dv, head_map };
            let mut expected_state = rng.vec(NUM_SLOTS * hv * dk * dv);
            let mut state = Output::<f32>::holding(cuda, &expected_state);
            let mut slots = Slots::new(cuda, 5).unwrap();
            for (step, sequences) in steps().iter().enumerate() {
                let rows: usize = sequences.iter().map(|s| s.num_tokens).sum();
                let small = |v: Vec<f32>| v.iter().map(|v| v / (dk as f32).sqrt()).collect::<Vec<_>>();
                let q = rounded::<T>(&small(rng.vec(rows * hk * dk)));
                let k = rounded::<T>(&small(rng.vec(rows * hk * dk)));
                let v = rounded::<T>(&rng.vec(rows * hv * dv));
                let width = if per_channel { dk } else { 1 };
                let g: Vec<f32> = rng.vec(rows * hv * width).iter().map(|g| -g.abs()).collect();
                let beta: Vec<f32> = rng.vec(rows * hv).iter().map(|b| b.abs()).collect();
                let host = host_delta::DeltaInputs { q: &q, k: &k, v: &v, g: &g, beta: &beta };
                let mut expected = vec![0.0; v.len()];
                host_delta::gated_delta_rule(
                    cpu(),
                    shape,
                    host,
                    sequences,
                    &mut expected_state,
                    &mut expected,
                )
                .unwrap();
                slots.set(cuda, sequences, NUM_SLOTS).unwrap();
                let (q, k, v) = (put::<T>(cuda, &q), put::<T>(cuda, &k), put::<T>(cuda, &v));
                let (g, beta) = (put::<f32>(cuda, &g), put::<f32>(cuda, &beta));
                let inputs =
                    DeltaInputs { q: q.view(), k: k.view(), v: v.view(), g: g.view(), beta: beta.view() };
                let mut out = Output::<T>::new(cuda, expected.len());
                state
                    .write(|state| out.write(|out| gated_delta_rule(cuda, shape, inputs, &slots, state, out)))
                    .unwrap();
                let what = format!("{name} {shape:?}, step {step}");
                assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(1e-5, 1e-5), &what);
                let close = Tolerance { absolute: 1e-5, relative: 1e-5 };
                assert_close(&state.read(cuda), &expected_state, close, &what);
            }
        }
    }
}

#[test]
fn convolution_matches_the_cpu_and_carries_state() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_conv);
}

#[test]
fn delta_rule_matches_the_cpu_and_carries_state() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_delta);
}

#[test]
fn a_slot_that_is_used_twice_or_missing_is_refused() {
    let Some(cuda) = gpu() else { return };
    let mut slots = Slots::new(cuda, 4).unwrap();
    let sequence = |slot| SlotSequence { num_tokens: 1, slot };
    assert!(slots.set(cuda, &[sequence(1), sequence(1)], 2).is_err());
    assert!(slots.set(cuda, &[sequence(2)], 2).is_err());
    slots.set(cuda, &[sequence(4)], 5).unwrap();
    // Checked against five slots, used with two.
    let (x, weight) = (put::<f32>(cuda, &[1.0; 8]), put::<f32>(cuda, &[1.0; 16]));
    let conv = Conv1d { weight: weight.view(), bias: None, kernel: 2, activation: Unary::Identity };
    let (mut state, mut out) = (Output::<f32>::new(cuda, 16), Output::<f32>::new(cuda, 8));
    let result =
        state.write(|state| out.write(|out| causal_conv1d(cuda, conv, x.view(), &slots, state, out)));
    assert!(result.is_err());
}
