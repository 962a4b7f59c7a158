//! Fixed position vectors of the original transformer, in the order of fairseq: all sines, then all cosines.

use super::device::Cuda;
use super::element::{Element, kernel};
use super::indices::Indices;
use super::launch::{Arguments, Grid};
use super::memory::ViewMut;
use crate::error::{Result, ensure_len, ensure_value};

/// `out[t] = [sin(p · fⱼ) | cos(p · fⱼ)]` with `p = positions[t] + offset`, `fⱼ = 10000^(−j / (half − 1))`,
/// `half = width / 2`; out is `[T, width]`.
///
/// # Errors
/// The width is odd or below 4, or `out` has the wrong length.
pub fn sinusoid<T: Element>(
    cuda: &Cuda,
    positions: &Indices,
    width: usize,
    offset: usize,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "sinusoid";
    ensure_value(OP, "width", width, width >= 4 && width.is_multiple_of(2), "even, at least 4")?;
    let (num_tokens, half) = (positions.len(), width / 2);
    ensure_len(OP, "out", out.len(), num_tokens * width)?;
    let step = 10_000_f64.ln() / (half as f64 - 1.0);
    let positions = positions.below(OP, "positions", usize::MAX)?;
    let arguments = Arguments::new().view(positions).view_mut(out).int(num_tokens).int(half).int(offset);
    let arguments = arguments.double(step);
    let grid = Grid::elements(cuda, num_tokens * half, 1);
    // SAFETY: out has `num_tokens` rows of 2 * half.
    unsafe { cuda.launch(OP, kernel!(T, "sinusoid"), grid, arguments) }
}
