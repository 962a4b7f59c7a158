//! Mixture of experts: routing, grouped expert projections and the weighted sum.
//!
//! A pair is (token, pick): pair p = token * `top_k` + pick. Expert projections compute one row per pair with the
//! inner products of [`super::linear`], so a row does not depend on how tokens are distributed over experts.

use super::elementwise::{Gate, map_rows};
use super::linear::{Activations, Epilogue, Projected, project_rows};
use super::{Cpu, Weight, math, norm};
use crate::error::{KernelError, Result, ensure_len, ensure_value, rows_of};

/// How logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// Limits the choice to the best groups of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of equal size.
    pub num_groups: usize,
    /// Groups that stay; a group counts with the sum of its two best experts.
    pub top_groups: usize,
}

/// A router.
#[derive(Debug, Clone, Copy)]
pub struct Router<'a> {
    /// E.
    pub num_experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Scores.
    pub scoring: Scoring,
    /// `[E]`, added to the scores for the choice only.
    pub bias: Option<&'a [f32]>,
    /// Group limit.
    pub groups: Option<ExpertGroups>,
    /// Divides the weights by their sum plus this.
    pub renormalize: Option<f32>,
    /// Multiplies the weights at the end.
    pub scaling_factor: f32,
}

/// The picks of all tokens.
#[derive(Debug)]
pub struct Routing<'a> {
    /// Experts, best first, `[T, top_k]`.
    pub experts: &'a mut [u32],
    /// Weights, `[T, top_k]`.
    pub weights: &'a mut [f32],
}

/// Picks experts for logits `[T, E]`. Ties go to the lowest index.
///
/// # Errors
/// A length or count does not fit.
pub fn route(router: Router<'_>, logits: &[f32], routing: Routing<'_>) -> Result<()> {
    const OP: &str = "route";
    let (e, k) = (router.num_experts, router.top_k);
    let rows = rows_of(OP, "logits", logits.len(), e)?;
    router.bias.map_or(Ok(()), |b| ensure_len(OP, "bias", b.len(), e))?;
    let mut available = e;
    if let Some(g) = router.groups {
        let equal = g.num_groups > 0 && e.is_multiple_of(g.num_groups);
        ensure_value(OP, "num_groups", g.num_groups, equal, format_args!("a divisor of {e}"))?;
        ensure_value(
            OP,
            "top_groups",
            g.top_groups,
            g.top_groups <= g.num_groups,
            "at most the number of groups",
        )?;
        available = e / g.num_groups * g.top_groups;
    }
    ensure_value(OP, "top_k", k, k > 0 && k <= available, format_args!("between 1 and {available}"))?;
    ensure_len(OP, "experts", routing.experts.len(), rows * k)?;
    ensure_len(OP, "weights", routing.weights.len(), rows * k)?;
    let mut scores = vec![0.0; e];
    let mut choice = vec![0.0; e];
    let picks = routing.experts.chunks_exact_mut(k).zip(routing.weights.chunks_exact_mut(k));
    for (logits, (experts, weights)) in logits.chunks_exact(e).zip(picks) {
        scores.copy_from_slice(logits);
        match router.scoring {
            Scoring::Softmax => norm::softmax_row(&mut scores),
            Scoring::Sigmoid => scores.iter_mut().for_each(|s| *s = math::sigmoid(*s)),
        }
        choice.copy_from_slice(&scores);
        if let Some(bias) = router.bias {
            choice.iter_mut().zip(bias).for_each(|(c, b)| *c += b);
        }
        if let Some(groups) = router.groups {
            keep_best_groups(&mut choice, groups);
        }
        for (expert, weight) in experts.iter_mut().zip(weights.iter_mut()) {
            let best = take_best(&mut choice);
            *expert = best as u32;
            *weight = scores[best];
        }
        let sum = router.renormalize.map(|eps| weights.iter().sum::<f32>() + eps);
        for weight in weights {
            *weight = sum.map_or(*weight, |sum| *weight / sum) * router.scaling_factor;
        }
    }
    Ok(())
}

/// Index of the largest value that was not taken yet (lowest on ties); marks it as taken.
fn take_best(values: &mut [f32]) -> usize {
    // NaN marks what is taken; a NaN score is never chosen before another one.
    let mut best: Option<usize> = None;
    for (i, v) in values.iter().enumerate() {
        if best.is_none_or(|b| values[b].is_nan() && !v.is_nan() || *v > values[b]) {
            best = Some(i);
        }
    }
    let best = best.unwrap_or(0);
    if let Some(value) = values.get_mut(best) {
        *value = f32::NAN;
    }
    best
}

fn keep_best_groups(choice: &mut [f32], groups: ExpertGroups) {
    let size = choice.len() / groups.num_groups;
    let mut totals: Vec<f32> = choice
        .chunks_exact(size)
        .map(|group| {
            let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for &v in group {
                if v > first {
                    (first, second) = (v, first);
                } else if v > second {
                    second = v;
                }
            }
            if size > 1 { first + second } else { first }
        })
        .collect();
    let mut keep = vec![false; groups.num_groups];
    for _ in 0..groups.top_groups {
        keep[take_best(&mut totals)] = true;
    }
    for (group, keep) in choice.chunks_exact_mut(size).zip(keep) {
        if !keep {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// The same rows of every expert in a stacked weight: expert e has rows
/// `e * stride + start .. e * stride + start + count`.
#[derive(Debug, Clone, Copy)]
pub struct Stacked<'a> {
    /// `[E * stride, K]`.
    pub weight: &'a Weight,
    /// Rows per expert.
    pub stride: usize,
    /// First row within an expert.
    pub start: usize,
    /// N: rows that are used.
    pub count: usize,
}

impl<'a> Stacked<'a> {
    /// A weight `[E, N, K]` of which all rows are used.
    #[must_use]
    pub fn whole(weight: &'a Weight, num_experts: usize) -> Self {
        let rows = weight.num_rows() / num_experts.max(1);
        Self { weight, stride: rows, start: 0, count: rows }
    }

    fn expert(&self, expert: usize) -> Result<Weight> {
        let first = expert * self.stride + self.start;
        self.weight.slice_rows(first..first + self.count)
    }
}

/// What is computed per pair.
#[derive(Clone, Copy)]
pub enum ExpertOp<'a> {
    /// y = x Wᵀ.
    Linear(Stacked<'a>),
    /// y = activation(x gateᵀ, x upᵀ).
    Gated {
        /// Gate weights.
        gate: Stacked<'a>,
        /// Up weights.
        up: Stacked<'a>,
        /// How both become one.
        activation: Gate,
    },
}

/// Which row of x a pair reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PairInput {
    /// x is `[T, K]`: the row of the token.
    Token,
    /// x is `[T * top_k, K]`: a row of its own.
    Pair,
}

/// Computes `op` for each pair: out `[T * top_k, N]`. `experts` is `[T, top_k]`.
///
/// # Errors
/// A length does not fit, or an expert does not exist.
pub fn expert_linear(
    cpu: &Cpu,
    x: (&[f32], PairInput),
    activations: Activations,
    op: ExpertOp<'_>,
    experts: (&[u32], usize),
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "expert_linear";
    let ((x, input), (experts, top_k)) = (x, experts);
    let main = match op {
        ExpertOp::Linear(weight) | ExpertOp::Gated { gate: weight, .. } => weight,
    };
    let limit = main.weight.num_rows().checked_div(main.stride).unwrap_or(0);
    let num_tokens = rows_of(OP, "experts", experts.len(), top_k)?;
    if let Some(position) = experts.iter().position(|&e| e as usize >= limit) {
        let found = experts[position] as usize;
        return Err(KernelError::Index { op: OP, argument: "experts", position, found, limit });
    }
    let x_rows = if input == PairInput::Token { num_tokens } else { experts.len() };
    ensure_len(OP, "x", x.len(), x_rows * main.weight.num_cols())?;
    ensure_len(OP, "out", out.len(), experts.len() * main.count)?;
    let mut pairs: Vec<u32> = (0..experts.len() as u32).collect();
    pairs.sort_by_key(|&p| experts[p as usize]);
    let inputs: Vec<u32> = match input {
        PairInput::Token => pairs.iter().map(|p| p / top_k as u32).collect(),
        PairInput::Pair => pairs.clone(),
    };
    let mut weights = Vec::new();
    let mut start = 0;
    while start < pairs.len() {
        let expert = experts[pairs[start] as usize];
        let end = start + pairs[start..].partition_point(|&p| experts[p as usize] == expert);
        let up = match op {
            ExpertOp::Linear(_) => None,
            ExpertOp::Gated { up, activation, .. } => Some((up.expert(expert as usize)?, activation)),
        };
        weights.push((main.expert(expert as usize)?, up, start..end));
        start = end;
    }
    let projected: Vec<Projected<'_>> = weights
        .iter()
        .map(|(weight, up, range)| Projected {
            weight,
            epilogue: up.as_ref().map_or(Epilogue::Store, |(up, activation)| Epilogue::Gated {
                activation: *activation,
                up,
                up_bias: None,
            }),
            x_rows: &inputs[range.clone()],
            out_rows: &pairs[range.clone()],
        })
        .collect();
    project_rows(cpu, x, activations, &projected, out)
}

/// `out[p] += bias[experts[p]]` for every pair p. `bias: [E, W]`, `experts: [P]`, `out: [P, W]`.
///
/// # Errors
/// A length does not fit, or an expert does not exist.
pub fn add_expert_bias(cpu: &Cpu, bias: &[f32], experts: &[u32], out: &mut [f32]) -> Result<()> {
    const OP: &str = "add_expert_bias";
    if experts.is_empty() {
        return ensure_len(OP, "out", out.len(), 0);
    }
    let width = out.len() / experts.len();
    ensure_len(OP, "out", out.len(), experts.len() * width)?;
    let num_experts = rows_of(OP, "bias", bias.len(), width)?;
    let bad = experts.iter().position(|&e| e as usize >= num_experts);
    if let Some(position) = bad {
        let found = experts[position] as usize;
        return Err(KernelError::Index { op: OP, argument: "experts", position, found, limit: num_experts });
    }
    map_rows(cpu, width.max(1), out, |pair, out| {
        let bias = &bias[experts[pair] as usize * width..][..width];
        out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
    });
    Ok(())
}

/// `out[t] = Σ_j weights[t, j] * y[t * top_k + j]` over the picks in order, added to out if `accumulate`.
///
/// # Errors
/// A length does not fit.
pub fn combine(
    cpu: &Cpu,
    y: &[f32],
    weights: &[f32],
    top_k: usize,
    accumulate: bool,
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "combine";
    let num_tokens = rows_of(OP, "weights", weights.len(), top_k)?;
    if num_tokens == 0 {
        return ensure_len(OP, "out", out.len(), 0);
    }
    let width = rows_of(OP, "out", out.len(), num_tokens).map(|_| out.len() / num_tokens)?;
    ensure_len(OP, "y", y.len(), num_tokens * top_k * width)?;
    map_rows(cpu, width.max(1), out, |t, out| {
        if !accumulate {
            out.fill(0.0);
        }
        for pair in t * top_k..(t + 1) * top_k {
            let y = &y[pair * width..][..width];
            out.iter_mut().zip(y).for_each(|(o, y)| *o += weights[pair] * y);
        }
    });
    Ok(())
}
