//! Mixture of experts: choosing, weighting, and the experts themselves.

use super::elementwise::logistic;
use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::{Tensor, dot, softmax, top_k};

/// `y = scale · Σₑ weightₑ · down[e]·(silu(gate[e]·x) ∘ up[e]·x)` over the experts that the router chooses.
pub(super) fn moe(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, logits) = (args.tensor(0)?, args.tensor(1)?);
    let (gate, up, down) = (args.tensor(2)?, args.tensor(3)?, args.tensor(4)?);
    let scale = args.float("scale");
    let mut y = Tensor::zeros(&x.shape);
    for t in 0..x.shape[0] {
        let input = x.row(t);
        let mut sum = vec![0.0; input.len()];
        for (expert, weight) in route(args, logits.row(t))? {
            let inner: Vec<f32> = (0..gate.shape[1])
                .map(|i| {
                    let (g, u) =
                        (dot(matrix_row(gate, expert, i), input), dot(matrix_row(up, expert, i), input));
                    (g * logistic(g) * u) as f32
                })
                .collect();
            for (h, s) in sum.iter_mut().enumerate() {
                *s += scale * weight * dot(matrix_row(down, expert, h), &inner);
            }
        }
        let width = sum.len();
        y.data[t * width..(t + 1) * width].iter_mut().zip(sum).for_each(|(y, s)| *y = s as f32);
    }
    Ok(y)
}

/// Row `row` of expert `expert` of `w: [experts, rows, columns]`.
fn matrix_row(w: &Tensor, expert: usize, row: usize) -> &[f32] {
    let columns = w.shape[2];
    &w.row(expert)[row * columns..(row + 1) * columns]
}

/// The chosen experts and their weights, before the scale.
fn route(args: &Args<'_>, logits: &[f32]) -> Result<Vec<(usize, f64)>, Fault> {
    let logits: Vec<f64> = logits.iter().map(|&l| l.into()).collect();
    let (scores, choice) = if args.text("router") == "softmax" {
        let scores = softmax(&logits);
        (scores.clone(), scores)
    } else {
        let scores: Vec<f64> = logits.into_iter().map(logistic).collect();
        let bias = args.optional(5)?;
        let biased = |(e, s): (usize, &f64)| s + bias.map_or(0.0, |b| f64::from(b.data[e]));
        let choice = scores.iter().enumerate().map(biased).collect();
        (scores, best_groups(choice, args.size("num_groups"), args.size("top_groups")))
    };
    let chosen = top_k(&choice, args.size("top_k"));
    let sum: f64 = chosen.iter().map(|&e| scores[e]).sum();
    let norm = if args.flag("renormalize") { sum } else { 1.0 };
    Ok(chosen.into_iter().map(|e| (e, scores[e] / norm)).collect())
}

/// −∞ outside the best `top` of `groups` groups; a group scores the sum of its two best members.
fn best_groups(mut scores: Vec<f64>, groups: usize, top: usize) -> Vec<f64> {
    if groups <= 1 {
        return scores;
    }
    let size = scores.len() / groups;
    let two_best = |group: &[f64]| top_k(group, 2).into_iter().map(|i| group[i]).sum();
    let group_scores: Vec<f64> = scores.chunks(size).map(two_best).collect();
    let kept = top_k(&group_scores, top);
    for (group, members) in scores.chunks_mut(size).enumerate() {
        if !kept.contains(&group) {
            members.fill(f64::NEG_INFINITY);
        }
    }
    scores
}
