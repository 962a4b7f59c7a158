//! Normalisation of rows.

use super::device::Cuda;
use super::element::{Element, kernel};
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
use crate::error::{Result, ensure_len, rows_of};

/// The weight of a norm, one value per column.
#[derive(Debug, Clone, Copy)]
pub enum NormWeight<'a> {
    /// No weight.
    None,
    /// x̂ * w.
    Plain(View<'a, f32>),
    /// x̂ * (1 + w).
    ZeroCentered(View<'a, f32>),
}

impl<'a> NormWeight<'a> {
    /// Checked: (weight, mode of the kernel).
    fn parts(self, op: &'static str, width: usize) -> Result<(Option<View<'a, f32>>, usize)> {
        let (weight, mode) = match self {
            Self::None => (None, 0),
            Self::Plain(w) => (Some(w), 1),
            Self::ZeroCentered(w) => (Some(w), 2),
        };
        weight.map_or(Ok(()), |w| ensure_len(op, "weight", w.len(), width))?;
        Ok((weight, mode))
    }
}

/// A warp per row, eight rows per block; a block per row where rows are wide. Depends on the width only.
fn grid(rows: usize, width: usize) -> Grid {
    if width <= 512 {
        Grid::new((rows.div_ceil(8), 1, 1), (32, 8)).overlapping()
    } else {
        Grid::of(rows, (width / 8).next_multiple_of(32).clamp(64, 512)).overlapping()
    }
}

/// out = x * rsqrt(mean(x²) + eps) * weight for each row of `width` elements. Rows of `head_dim` elements give the
/// per-head norm.
///
/// # Errors
/// A length does not fit.
pub fn rms_norm<T: Element>(
    cuda: &Cuda,
    x: View<'_, T>,
    width: usize,
    weight: NormWeight<'_>,
    eps: f32,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "rms_norm";
    let rows = rows_of(OP, "x", x.len(), width)?;
    ensure_len(OP, "out", out.len(), x.len())?;
    let (weight, mode) = weight.parts(OP, width)?;
    let arguments = Arguments::new().view(x).optional(weight).view_mut(out);
    let arguments = arguments.int(rows).int(width).int(mode).float(eps);
    // SAFETY: the kernel reads and writes rows * width elements and `width` weights, which were checked.
    unsafe { cuda.launch(OP, kernel!(T, "rms_norm"), grid(rows, width), arguments) }
}

/// As [`rms_norm`], in place.
///
/// # Errors
/// A length does not fit.
pub fn rms_norm_in_place<T: Element>(
    cuda: &Cuda,
    x: &mut ViewMut<'_, T>,
    width: usize,
    weight: NormWeight<'_>,
    eps: f32,
) -> Result<()> {
    const OP: &str = "rms_norm_in_place";
    let rows = rows_of(OP, "x", x.len(), width)?;
    let (weight, mode) = weight.parts(OP, width)?;
    let arguments = Arguments::new().view_mut(x).optional(weight).view_mut(x);
    let arguments = arguments.int(rows).int(width).int(mode).float(eps);
    // SAFETY: as in `rms_norm`; a thread overwrites only elements that it alone reads after the sum of the row.
    unsafe { cuda.launch(OP, kernel!(T, "rms_norm"), grid(rows, width), arguments) }
}

/// residual += x, then out = `rms_norm(residual)`: the start of a sub-block of a pre-norm decoder. The norm is that of
/// the sum as it is stored.
///
/// # Errors
/// A length does not fit.
pub fn add_rms_norm<T: Element>(
    cuda: &Cuda,
    x: View<'_, T>,
    residual: &mut ViewMut<'_, T>,
    weight: NormWeight<'_>,
    eps: f32,
    out: RowsMut<'_, '_, T>,
) -> Result<()> {
    const OP: &str = "add_rms_norm";
    let RowsMut { width, data: out } = out;
    let rows = rows_of(OP, "x", x.len(), width)?;
    ensure_len(OP, "residual", residual.len(), x.len())?;
    ensure_len(OP, "out", out.len(), x.len())?;
    let (weight, mode) = weight.parts(OP, width)?;
    let arguments = Arguments::new().view(x).view_mut(residual).optional(weight).view_mut(out);
    let arguments = arguments.int(rows).int(width).int(mode).float(eps);
    // SAFETY: three arrays of rows * width elements and `width` weights, which were checked.
    unsafe { cuda.launch(OP, kernel!(T, "add_rms_norm"), grid(rows, width), arguments) }
}

/// Rows of `width` elements to write to.
#[derive(Debug)]
pub struct RowsMut<'a, 'b, T> {
    /// Elements of a row.
    pub width: usize,
    /// All rows.
    pub data: &'a mut ViewMut<'b, T>,
}

/// The learned part of a layer norm.
#[derive(Debug, Clone, Copy, Default)]
pub struct Affine<'a> {
    /// One factor per column.
    pub weight: Option<View<'a, f32>>,
    /// Added per column.
    pub bias: Option<View<'a, f32>>,
}

/// out = (x - mean) * rsqrt(var + eps) * weight + bias for each row of `width` elements (population variance).
///
/// # Errors
/// A length does not fit.
pub fn layer_norm<T: Element>(
    cuda: &Cuda,
    x: View<'_, T>,
    width: usize,
    affine: Affine<'_>,
    eps: f32,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "layer_norm";
    let rows = rows_of(OP, "x", x.len(), width)?;
    ensure_len(OP, "out", out.len(), x.len())?;
    for (name, part) in [("weight", affine.weight), ("bias", affine.bias)] {
        part.map_or(Ok(()), |p| ensure_len(OP, name, p.len(), width))?;
    }
    let arguments = Arguments::new().view(x).optional(affine.weight).optional(affine.bias).view_mut(out);
    let arguments = arguments.int(rows).int(width).float(eps);
    // SAFETY: rows * width elements, `width` weights and biases, which were checked.
    unsafe { cuda.launch(OP, kernel!(T, "layer_norm"), grid(rows, width), arguments) }
}

/// x = x * rsqrt(Σx² + eps) * factor for each row of `width` elements.
///
/// # Errors
/// The length is not a multiple of the width.
pub fn l2_norm<T: Element>(
    cuda: &Cuda,
    x: &mut ViewMut<'_, T>,
    width: usize,
    eps: f32,
    factor: f32,
) -> Result<()> {
    const OP: &str = "l2_norm";
    let rows = rows_of(OP, "x", x.len(), width)?;
    let arguments = Arguments::new().view_mut(x).int(rows).int(width).float(eps).float(factor);
    // SAFETY: rows * width elements, which were checked.
    unsafe { cuda.launch(OP, kernel!(T, "l2_norm"), grid(rows, width), arguments) }
}
