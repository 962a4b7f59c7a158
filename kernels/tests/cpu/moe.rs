//! Products that differ from row to row: of experts, of heads.

use metrale_kernels::KernelError;
use metrale_kernels::cpu::Weight;
use metrale_kernels::cpu::elementwise::{Gate, Unary};
use metrale_kernels::cpu::linear::{Activations, Projection, head_linear, linear};
use metrale_kernels::cpu::moe::{ExpertOp, PairInput, Stacked, add_expert_bias, expert_linear};

use crate::support::{Rng, assert_close, assert_same_bits, cpus, poisoned};

#[test]
fn every_head_is_multiplied_with_its_own_matrix() {
    let (tokens, heads, inputs, outputs) = (5, 3, 40, 21);
    let mut rng = Rng::new(1);
    let (x, w) = (rng.vec(tokens * heads * inputs), rng.vec(heads * outputs * inputs));
    let weight = Weight::from_f32(heads * outputs, inputs, &w).unwrap();
    for cpu in cpus(&[1, 3]) {
        let mut out = poisoned(tokens * heads * outputs);
        head_linear(&cpu, &x, Activations::F32, &weight, heads, &mut out).unwrap();
        for head in 0..heads {
            let matrix = Weight::from_f32(outputs, inputs, &w[head * outputs * inputs..][..outputs * inputs]);
            let matrix = matrix.unwrap();
            for token in 0..tokens {
                let row = token * heads + head;
                let mut expected = poisoned(outputs);
                let mut projections = [Projection::new(&matrix, &mut expected)];
                linear(&cpu, &x[row * inputs..][..inputs], Activations::F32, &mut projections).unwrap();
                assert_same_bits(&out[row * outputs..][..outputs], &expected, "a head's product");
            }
        }
        assert!(head_linear(&cpu, &x, Activations::F32, &weight, 2, &mut out).is_err());
    }
}

/// What becomes of a gate and what it lets through.
type Formula = fn(f64, f64) -> f64;

fn sigmoid(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}

#[test]
fn gated_experts_compute_what_their_activation_says() {
    let (tokens, top_k, experts, inputs, inner) = (6, 2, 4, 24, 18);
    let mut rng = Rng::new(2);
    // Large enough that limits bind.
    let x: Vec<f32> = rng.vec(tokens * inputs).into_iter().map(|v| 4.0 * v).collect();
    let (gate, up) = (rng.vec(experts * inner * inputs), rng.vec(experts * inner * inputs));
    let chosen: Vec<u32> = (0..tokens * top_k).map(|_| rng.below(experts) as u32).collect();
    let activations: [(Gate, Formula); 3] = [
        (Unary::Silu.into(), |g, u| g * sigmoid(g) * u),
        (Gate::ClampedSilu { limit: 3.0 }, |g, u| g.min(3.0) * sigmoid(g.min(3.0)) * u.clamp(-3.0, 3.0)),
        (Gate::SwigluOai { limit: 3.0, alpha: 1.702 }, |g, u| {
            g.min(3.0) * sigmoid(1.702 * g.min(3.0)) * (u.clamp(-3.0, 3.0) + 1.0)
        }),
    ];
    for (activation, f) in activations {
        let product = |w: &[f32], pair: usize, row: usize| -> f64 {
            let w = &w[(chosen[pair] as usize * inner + row) * inputs..][..inputs];
            let x = &x[pair / top_k * inputs..][..inputs];
            w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
        };
        let expected: Vec<f64> = (0..tokens * top_k * inner)
            .map(|i| f(product(&gate, i / inner, i % inner), product(&up, i / inner, i % inner)))
            .collect();
        let stack = |w: &[f32]| Weight::from_f32(experts * inner, inputs, w).unwrap();
        let (gate, up) = (stack(&gate), stack(&up));
        let (gate, up) = (Stacked::whole(&gate, experts), Stacked::whole(&up, experts));
        for cpu in cpus(&[1, 3]) {
            let mut out = poisoned(tokens * top_k * inner);
            let op = ExpertOp::Gated { gate, up, activation };
            let x = (x.as_slice(), PairInput::Token);
            expert_linear(&cpu, x, Activations::F32, op, (&chosen, top_k), &mut out).unwrap();
            assert_close(&out, &expected, |i| 1e-5 * expected[i].abs().max(1.0), "a gated expert");
        }
    }
}

#[test]
fn every_pair_gets_the_bias_of_its_expert() {
    for cpu in &cpus(&[1, 2]) {
        let mut rng = Rng::new(3);
        let (num_experts, width) = (5, 37);
        let (bias, before) = (rng.vec(num_experts * width), rng.vec(9 * width));
        let experts: Vec<u32> = (0..9).map(|_| rng.below(num_experts) as u32).collect();
        let mut out = before.clone();
        add_expert_bias(cpu, &bias, &experts, &mut out).unwrap();
        for (i, (found, before)) in out.iter().zip(&before).enumerate() {
            let expert = experts[i / width] as usize;
            assert_eq!(*found, before + bias[expert * width + i % width]);
        }
    }
}

#[test]
fn an_expert_that_does_not_exist_is_refused() {
    for cpu in &cpus(&[1, 2]) {
        let error = add_expert_bias(cpu, &[0.0; 4], &[0, 2], &mut [0.0; 4]).unwrap_err();
        assert!(matches!(error, KernelError::Index { position: 1, found: 2, limit: 2, .. }), "{error}");
    }
}
