//! A matrix of its own for every head.

use super::{Activations, Epilogue, Projected, project_rows};
use crate::cpu::{Cpu, Weight};
use crate::error::{Result, ensure_len, ensure_value, rows_of};

/// `y[t, h] = x[t, h] W[h]ᵀ` for x `[T, heads, K]`, a weight `[heads * N, K]`, out `[T, heads, N]`.
///
/// # Errors
/// A length does not fit, or the weight's rows are not a multiple of the number of heads.
pub fn head_linear(
    cpu: &Cpu,
    x: &[f32],
    activations: Activations,
    weight: &Weight,
    num_heads: usize,
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "head_linear";
    let rows = weight.num_rows();
    let cut = num_heads > 0 && rows.is_multiple_of(num_heads);
    ensure_value(OP, "num_heads", num_heads, cut, format_args!("a divisor of {rows}"))?;
    let width = rows / num_heads;
    let num_tokens = rows_of(OP, "x", x.len(), num_heads * weight.num_cols())?;
    ensure_len(OP, "out", out.len(), num_tokens * rows)?;
    let weights: Vec<Weight> =
        (0..num_heads).map(|h| weight.slice_rows(h * width..(h + 1) * width)).collect::<Result<_>>()?;
    // Rows of one head in x and in the output: h, heads + h, 2 * heads + h, …
    let places: Vec<u32> =
        (0..num_heads).flat_map(|h| (0..num_tokens).map(move |t| (t * num_heads + h) as u32)).collect();
    let of_head = |(h, weight)| {
        let rows = &places[h * num_tokens..][..num_tokens];
        Projected { weight, epilogue: Epilogue::Store, x_rows: rows, out_rows: rows }
    };
    let projected: Vec<Projected<'_>> = weights.iter().enumerate().map(of_head).collect();
    project_rows(cpu, x, activations, &projected, out)
}
