//! Mixture of experts: routing, expert projections and the weighted sum.
//!
//! A pair is (token, pick): pair p = token * `top_k` + pick. A projection computes one row per pair.

use super::device::Cuda;
use super::element::{Element, kernel};
use super::indices::Indices;
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
use super::quantized::{self, Activations};
use super::weight::{Format, Weight};
pub use crate::cpu::moe::{ExpertGroups, PairInput, Scoring};
use crate::error::{Result, ensure_len, ensure_value, rows_of};

/// Most experts.
const MAX_EXPERTS: usize = 1024;

/// A router.
#[derive(Debug, Clone, Copy)]
pub struct Router<'a> {
    /// E, at most 1024.
    pub num_experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Scores.
    pub scoring: Scoring,
    /// `[E]`, added to the scores for the choice only.
    pub bias: Option<View<'a, f32>>,
    /// Group limit.
    pub groups: Option<ExpertGroups>,
    /// Divides the weights by their sum plus this.
    pub renormalize: Option<f32>,
    /// Multiplies the weights at the end.
    pub scaling_factor: f32,
}

/// Picks experts for logits `[T, E]`: experts `[T, top_k]`, best first, and their weights. Ties go to the lowest index.
///
/// # Errors
/// A length or count does not fit.
pub fn route(
    cuda: &Cuda,
    router: Router<'_>,
    logits: View<'_, f32>,
    experts: &mut Indices,
    weights: &mut ViewMut<'_, f32>,
) -> Result<()> {
    const OP: &str = "route";
    let (e, k) = (router.num_experts, router.top_k);
    let supported = (1..=MAX_EXPERTS).contains(&e);
    ensure_value(OP, "num_experts", e, supported, format_args!("between 1 and {MAX_EXPERTS}"))?;
    let rows = rows_of(OP, "logits", logits.len(), e)?;
    router.bias.map_or(Ok(()), |b| ensure_len(OP, "bias", b.len(), e))?;
    let (mut available, mut groups) = (e, (0, 0));
    if let Some(ExpertGroups { num_groups, top_groups }) = router.groups {
        let equal = num_groups > 0 && e.is_multiple_of(num_groups);
        ensure_value(OP, "num_groups", num_groups, equal, format_args!("a divisor of {e}"))?;
        let enough = top_groups <= num_groups;
        ensure_value(OP, "top_groups", top_groups, enough, "at most the number of groups")?;
        available = e / num_groups * top_groups;
        groups = (num_groups, top_groups);
    }
    ensure_value(OP, "top_k", k, k > 0 && k <= available, format_args!("between 1 and {available}"))?;
    ensure_len(OP, "weights", weights.len(), rows * k)?;
    let experts = experts.begin_write(OP, rows * k, e)?;
    let arguments = Arguments::new().view(logits).optional(router.bias);
    let arguments = arguments.view_mut(&experts.view_mut()).view_mut(weights).int(e).int(k);
    let arguments =
        arguments.int(usize::from(router.scoring == Scoring::Sigmoid)).int(groups.0).int(groups.1);
    let arguments = arguments.float(router.renormalize.unwrap_or(-1.0)).float(router.scaling_factor);
    // SAFETY: logits have `rows` rows of E, experts and weights k for each; picks are below E, since k is at most the
    // number of experts that may be picked.
    unsafe { cuda.launch(OP, "route", Grid::of(rows, e.next_multiple_of(32)), arguments) }
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

/// y = x Wᵀ for each pair: out `[T * top_k, N]`. With quantised weights x is rounded to int8, one scale per 32 columns.
///
/// # Errors
/// A length does not fit, or the experts were not checked against the weight.
pub fn expert_linear<T: Element>(
    cuda: &Cuda,
    (x, input): (View<'_, T>, PairInput),
    stacked: Stacked<'_>,
    (experts, top_k): (&Indices, usize),
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "expert_linear";
    const ROWS_PER_BLOCK: usize = 4;
    let Stacked { weight, stride, start, count } = stacked;
    let inside = start.saturating_add(count) <= stride && stride > 0;
    ensure_value(OP, "start", start, inside, format_args!("rows within the {stride} of an expert"))?;
    let num_tokens = rows_of(OP, "experts", experts.len(), top_k)?;
    let pairs = experts.len();
    let experts = experts.below(OP, "experts", weight.num_rows() / stride)?;
    let (x_rows, sharing) = match input {
        PairInput::Token => (num_tokens, top_k),
        PairInput::Pair => (pairs, 1),
    };
    ensure_len(OP, "x", x.len(), x_rows * weight.num_cols())?;
    ensure_len(OP, "out", out.len(), pairs * count)?;
    let grid = Grid::new((count.div_ceil(ROWS_PER_BLOCK), pairs, 1), (32 * ROWS_PER_BLOCK, 1));
    let finish = |arguments: Arguments, columns: usize, out: &ViewMut<'_, T>| {
        let arguments = arguments.view(experts).view_mut(out).int(columns);
        arguments.int(stride).int(start).int(count).int(sharing)
    };
    if !weight.format().is_quantized() {
        let kernel = match weight.format() {
            Format::F32 => T::pick("expert_f32_f32", "expert_f32_bf16"),
            Format::F16 => T::pick("expert_f16_f32", "expert_f16_bf16"),
            _ => T::pick("expert_bf16_f32", "expert_bf16_bf16"),
        };
        let arguments = finish(Arguments::new().view(weight.bytes()).view(x), weight.num_cols(), out);
        // SAFETY: experts lie within the weight, x and out have a row for each pair.
        return unsafe { cuda.launch(OP, kernel, grid, arguments) };
    }
    cuda.with_workspace(quantized::workspace_len(x.len()), |workspace| {
        let mut workspace = workspace.view_mut();
        let x = Activations::round(cuda, OP, x, &mut workspace)?;
        let arguments = x.arguments(weight)?;
        let arguments = finish(arguments, weight.num_cols() / quantized::BLOCK, out);
        // SAFETY: as above.
        unsafe { cuda.launch(OP, quantized::expert_kernel::<T>(weight.format()), grid, arguments) }
    })
}

/// `out[t] = Σ_j weights[t, j] * y[t * top_k + j]` over the picks in order, added to out if `accumulate`.
///
/// # Errors
/// A length does not fit.
pub fn combine<T: Element>(
    cuda: &Cuda,
    y: View<'_, T>,
    weights: View<'_, f32>,
    top_k: usize,
    accumulate: bool,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "combine";
    let num_tokens = rows_of(OP, "weights", weights.len(), top_k)?;
    if num_tokens == 0 {
        return ensure_len(OP, "out", out.len(), 0);
    }
    rows_of(OP, "out", out.len(), num_tokens)?;
    let width = out.len() / num_tokens;
    ensure_len(OP, "y", y.len(), num_tokens * top_k * width)?;
    let arguments = Arguments::new().view(y).view(weights).view_mut(out);
    let arguments = arguments.size(num_tokens).int(top_k).int(width).int(usize::from(accumulate));
    // SAFETY: y has a row of `width` for each pick and out for each token.
    unsafe { cuda.launch(OP, kernel!(T, "expert_combine"), Grid::elements(cuda, out.len(), 1), arguments) }
}
