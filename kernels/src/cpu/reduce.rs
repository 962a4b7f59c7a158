//! Sums over an axis.

use super::Cpu;
use super::elementwise::map_rows;
use crate::error::{Result, ensure_len, ensure_value};

/// `out[r, i] = factor · Σⱼ x[r, j, i]` for x `[rows, count, inner]`, out `[rows, inner]`, summed in order of j.
///
/// # Errors
/// A size is 0 or a length does not fit.
pub fn sum_axis(
    cpu: &Cpu,
    x: &[f32],
    (count, inner): (usize, usize),
    factor: f32,
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "sum_axis";
    ensure_value(OP, "count", count, count > 0, "at least 1")?;
    ensure_value(OP, "inner", inner, inner > 0, "at least 1")?;
    ensure_len(OP, "x", x.len(), out.len() * count)?;
    ensure_len(OP, "out", out.len(), out.len() / inner * inner)?;
    map_rows(cpu, inner, out, |row, out| {
        out.fill(0.0);
        for part in x[row * count * inner..][..count * inner].chunks_exact(inner) {
            out.iter_mut().zip(part).for_each(|(o, x)| *o += x);
        }
        out.iter_mut().for_each(|o| *o *= factor);
    });
    Ok(())
}
