use metrale_kernels::cpu::linear::Activations;
use metrale_kernels::cpu::moe as reference;
use metrale_kernels::cpu::{Format, Weight as HostWeight};
use metrale_kernels::cuda::moe::{
    ExpertGroups, PairInput, Router, Scoring, Stacked, combine, expert_linear, route,
};
use metrale_kernels::cuda::{Cuda, Element, Indices, Weight};

use crate::blocks::random;
use crate::embedding::bytes;
use crate::support::{Output, Rng, Tolerance, assert_close, cpu, for_elements, gpu, put, rounded};

#[test]
fn routing_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    let mut rng = Rng::new(1);
    let groups = |num_groups, top_groups| Some(ExpertGroups { num_groups, top_groups });
    for (num_experts, top_k, groups) in [
        (8, 2, None),
        (7, 7, None),
        (128, 8, None),
        (256, 8, groups(8, 4)),
        (60, 4, groups(6, 1)),
        (512, 10, None),
    ] {
        for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
            for (with_bias, renormalize) in [(false, None), (true, Some(1e-20)), (false, Some(0.0))] {
                let rows = 9;
                let mut logits = rng.vec(rows * num_experts);
                // Ties.
                logits[..num_experts].fill(0.5);
                let bias = rng.vec(num_experts);
                let router = reference::Router {
                    num_experts,
                    top_k,
                    scoring,
                    bias: with_bias.then_some(&bias[..]),
                    groups,
                    renormalize,
                    scaling_factor: 2.5,
                };
                let (mut expected, mut expected_weights) = (vec![0; rows * top_k], vec![0.0; rows * top_k]);
                let routing = reference::Routing { experts: &mut expected, weights: &mut expected_weights };
                reference::route(router, &logits, routing).unwrap();
                let device_bias = put::<f32>(cuda, &bias);
                let router = Router {
                    num_experts,
                    top_k,
                    scoring,
                    bias: with_bias.then(|| device_bias.view()),
                    groups,
                    renormalize,
                    scaling_factor: 2.5,
                };
                let mut experts = Indices::new(cuda, rows * top_k).unwrap();
                let mut weights = Output::<f32>::new(cuda, rows * top_k);
                let logits = put::<f32>(cuda, &logits);
                weights.write(|w| route(cuda, router, logits.view(), &mut experts, w)).unwrap();
                let what = format!("{router:?}");
                assert_eq!(experts.to_vec(cuda).unwrap(), expected, "{what}");
                let tolerance = Tolerance { absolute: 1e-7, relative: 1e-5 };
                assert_close(&weights.read(cuda), &expected_weights, tolerance, &what);
            }
        }
    }
}

fn check_experts<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(2);
    let (num_experts, tokens, top_k, stride, start, count) = (6, 5, 3, 48, 7, 33);
    for format in Format::ALL {
        let k = if format.is_quantized() { 512 } else { 100 };
        let raw = if format.is_quantized() {
            random(format, &mut rng, num_experts * stride, k)
        } else {
            bytes(format, &rng.vec(num_experts * stride * k))
        };
        let host = HostWeight::from_vec(format, num_experts * stride, k, raw.clone()).unwrap();
        let weight = Weight::new(cuda, format, num_experts * stride, k, &raw).unwrap();
        let picks: Vec<u32> = (0..tokens * top_k).map(|_| rng.below(num_experts) as u32).collect();
        let mut experts = Indices::new(cuda, picks.len()).unwrap();
        experts.set(cuda, &picks, num_experts).unwrap();
        for input in [PairInput::Token, PairInput::Pair] {
            let rows = if input == PairInput::Token { tokens } else { tokens * top_k };
            let x = rounded::<T>(&rng.vec(rows * k));
            let mut expected = vec![0.0; picks.len() * count];
            let op = reference::ExpertOp::Linear(reference::Stacked { weight: &host, stride, start, count });
            let (x_host, picks) = ((&x[..], input), (&picks[..], top_k));
            reference::expert_linear(cpu(), x_host, Activations::Int8, op, picks, &mut expected).unwrap();
            let (x, mut out) = (put::<T>(cuda, &x), Output::<T>::new(cuda, expected.len()));
            let stacked = Stacked { weight: &weight, stride, start, count };
            out.write(|out| expert_linear(cuda, (x.view(), input), stacked, (&experts, top_k), out)).unwrap();
            let largest = expected.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            let tolerance = Tolerance::of::<T>(1e-5 + 3e-5 * largest, 1e-5);
            assert_close(&out.read(cuda), &expected, tolerance, &format!("{name} {format:?} {input:?}"));
        }
        assert!(experts.set(cuda, &[num_experts as u32], num_experts).is_err());
    }
}

fn check_combine<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(3);
    let (tokens, top_k, width) = (5, 3, 100);
    let (y, weights) = (rounded::<T>(&rng.vec(tokens * top_k * width)), rng.vec(tokens * top_k));
    let old = rounded::<T>(&rng.vec(tokens * width));
    for accumulate in [false, true] {
        let mut expected = old.clone();
        reference::combine(cpu(), &y, &weights, top_k, accumulate, &mut expected).unwrap();
        let mut out = Output::<T>::holding(cuda, &old);
        let (y, weights) = (put::<T>(cuda, &y), put::<f32>(cuda, &weights));
        out.write(|out| combine(cuda, y.view(), weights.view(), top_k, accumulate, out)).unwrap();
        assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(1e-6, 1e-5), name);
    }
}

#[test]
fn expert_projections_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_experts);
}

#[test]
fn combining_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_combine);
}
