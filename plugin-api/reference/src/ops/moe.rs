//! Mixture of experts: choosing, weighting, and the experts themselves.

use super::elementwise::{gelu_of, logistic};
use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::{Tensor, dot, softmax, top_k};

/// `y = scale · Σₑ weightₑ · (down[e]·inner + down_bias[e])` over the experts that the router chooses.
pub(super) fn moe(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, logits, down) = (args.tensor(0)?, args.tensor(1)?, args.tensor(4)?);
    let (gate, up) = (Projection::read(args, 2, 6)?, Projection::read(args, 3, 7)?);
    let down_bias = args.optional(8)?;
    let gate = gate.ok_or(Fault::Kind { input: 2, expected: "given" })?;
    let scale = args.float("scale");
    let mut y = Tensor::zeros(&x.shape);
    for t in 0..x.shape[0] {
        let input = x.row(t);
        let mut sum = vec![0.0; input.len()];
        for (expert, weight) in route(args, logits.row(t))? {
            let inner: Vec<f32> = (0..gate.weight.shape[1])
                .map(|i| {
                    let u = up.as_ref().map(|up| up.apply(expert, i, input));
                    activate(args, gate.apply(expert, i, input), u) as f32
                })
                .collect();
            for (h, s) in sum.iter_mut().enumerate() {
                let bias = down_bias.map_or(0.0, |b| f64::from(b.row(expert)[h]));
                *s += scale * weight * (dot(matrix_row(down, expert, h), &inner) + bias);
            }
        }
        let width = sum.len();
        y.data[t * width..(t + 1) * width].iter_mut().zip(sum).for_each(|(y, s)| *y = s as f32);
    }
    Ok(y)
}

/// One of the experts' input matrices, with its bias.
struct Projection<'a> {
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
}

impl<'a> Projection<'a> {
    fn read(args: &Args<'a>, weight: usize, bias: usize) -> Result<Option<Self>, Fault> {
        let bias = args.optional(bias)?;
        Ok(args.optional(weight)?.map(|weight| Self { weight, bias }))
    }

    /// Output `row` of an expert.
    fn apply(&self, expert: usize, row: usize, x: &[f32]) -> f64 {
        let bias = self.bias.map_or(0.0, |b| f64::from(b.row(expert)[row]));
        dot(matrix_row(self.weight, expert, row), x) + bias
    }
}

/// The value between an expert's matrices, from `g = gate·x` and `u = up·x`.
fn activate(args: &Args<'_>, g: f64, u: Option<f64>) -> f64 {
    let limit = args.node.attrs.float("limit").unwrap_or(f64::INFINITY);
    let (clamped_g, clamped_u) = (g.min(limit), u.map(|u| u.clamp(-limit, limit)));
    match args.text("activation") {
        "relu" => g.max(0.0) * u.unwrap_or(1.0),
        "gelu" => gelu_of(g) * u.unwrap_or(1.0),
        "swigluoai" => {
            (clamped_u.unwrap_or(0.0) + 1.0) * clamped_g * logistic(args.float("alpha") * clamped_g)
        }
        _ => clamped_g * logistic(clamped_g) * clamped_u.unwrap_or(1.0),
    }
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
