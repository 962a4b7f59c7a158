//! Normalisation of rows. Every reduction runs in 16 lanes that are added in a fixed order, the same at every level.

use super::elementwise::map_rows;
use super::isa::Kernel;
use super::shared::SharedSlice;
use super::simd::Simd;
use super::{Cpu, math};
use crate::error::{Result, ensure_len, rows_of};

/// Elements below which one thread works alone.
const GRAIN: usize = 1 << 13;
/// Lanes of a reduction.
const LANES: usize = 16;

/// The weight of a norm, one value per column.
#[derive(Debug, Clone, Copy)]
pub enum NormWeight<'a> {
    /// No weight.
    None,
    /// x̂ * w.
    Plain(&'a [f32]),
    /// x̂ * (1 + w).
    ZeroCentered(&'a [f32]),
}

impl NormWeight<'_> {
    fn check(self, op: &'static str, width: usize) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Plain(w) | Self::ZeroCentered(w) => ensure_len(op, "weight", w.len(), width),
        }
    }

    /// out = x * factor * weight.
    #[inline(always)]
    fn apply(self, x: &[f32], factor: f32, out: &mut [f32]) {
        match self {
            Self::None => out.iter_mut().zip(x).for_each(|(o, x)| *o = x * factor),
            Self::Plain(w) => out.iter_mut().zip(x.iter().zip(w)).for_each(|(o, (x, w))| *o = x * factor * w),
            Self::ZeroCentered(w) => {
                out.iter_mut().zip(x.iter().zip(w)).for_each(|(o, (x, w))| *o = x * factor * (1.0 + w));
            }
        }
    }
}

/// out = x * rsqrt(mean(x²) + eps) * weight for each row of `width` elements. Rows of `head_dim` elements give the
/// per-head norm.
///
/// # Errors
/// A length does not fit.
pub fn rms_norm(
    cpu: &Cpu,
    x: &[f32],
    width: usize,
    weight: NormWeight<'_>,
    eps: f32,
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "rms_norm";
    rows_of(OP, "x", x.len(), width)?;
    ensure_len(OP, "out", out.len(), x.len())?;
    weight.check(OP, width)?;
    map_rows(cpu, width, out, |row, out| {
        let x = &x[row * width..][..width];
        weight.apply(x, rms_factor(x, eps), out);
    });
    Ok(())
}

/// As [`rms_norm`], in place.
///
/// # Errors
/// A length does not fit.
pub fn rms_norm_in_place(
    cpu: &Cpu,
    x: &mut [f32],
    width: usize,
    weight: NormWeight<'_>,
    eps: f32,
) -> Result<()> {
    const OP: &str = "rms_norm_in_place";
    rows_of(OP, "x", x.len(), width)?;
    weight.check(OP, width)?;
    map_rows(cpu, width, x, |_, x| {
        let factor = rms_factor(x, eps);
        match weight {
            NormWeight::None => x.iter_mut().for_each(|x| *x *= factor),
            NormWeight::Plain(w) => x.iter_mut().zip(w).for_each(|(x, w)| *x = *x * factor * w),
            NormWeight::ZeroCentered(w) => {
                x.iter_mut().zip(w).for_each(|(x, w)| *x = *x * factor * (1.0 + w));
            }
        }
    });
    Ok(())
}

/// residual += x, then out = rms_norm(residual): the start of a sub-block of a pre-norm decoder.
///
/// # Errors
/// A length does not fit.
pub fn add_rms_norm(
    cpu: &Cpu,
    x: &[f32],
    residual: &mut [f32],
    weight: NormWeight<'_>,
    eps: f32,
    out: RowsMut<'_>,
) -> Result<()> {
    const OP: &str = "add_rms_norm";
    let RowsMut { width, data: out } = out;
    let rows = rows_of(OP, "x", x.len(), width)?;
    ensure_len(OP, "residual", residual.len(), x.len())?;
    ensure_len(OP, "out", out.len(), x.len())?;
    weight.check(OP, width)?;
    let (residual, out) = (SharedSlice::new(residual), SharedSlice::new(out));
    cpu.pool().for_each(rows, (GRAIN / width).max(1), |rows| {
        let range = rows.start * width..rows.end * width;
        // SAFETY: ranges of `for_each` do not overlap and lie within the rows.
        let (residual, out) = unsafe { (residual.part(range.clone()), out.part(range.clone())) };
        cpu.launch(AddRmsNorm { x: &x[range], residual, out, width, weight, eps });
    });
    Ok(())
}

/// Rows of `width` elements to write to.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// Elements of a row.
    pub width: usize,
    /// All rows.
    pub data: &'a mut [f32],
}

struct AddRmsNorm<'a> {
    x: &'a [f32],
    residual: &'a mut [f32],
    out: &'a mut [f32],
    width: usize,
    weight: NormWeight<'a>,
    eps: f32,
}

impl Kernel for AddRmsNorm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let rows = self.residual.chunks_exact_mut(self.width).zip(self.out.chunks_exact_mut(self.width));
        for ((residual, out), x) in rows.zip(self.x.chunks_exact(self.width)) {
            residual.iter_mut().zip(x).for_each(|(r, x)| *r += x);
            self.weight.apply(residual, rms_factor(residual, self.eps), out);
        }
    }
}

/// The learned part of a layer norm.
#[derive(Debug, Clone, Copy, Default)]
pub struct Affine<'a> {
    /// One factor per column.
    pub weight: Option<&'a [f32]>,
    /// Added per column.
    pub bias: Option<&'a [f32]>,
}

/// out = (x - mean) * rsqrt(var + eps) * weight + bias for each row of `width` elements (population variance).
///
/// # Errors
/// A length does not fit.
pub fn layer_norm(
    cpu: &Cpu,
    x: &[f32],
    width: usize,
    affine: Affine<'_>,
    eps: f32,
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "layer_norm";
    rows_of(OP, "x", x.len(), width)?;
    ensure_len(OP, "out", out.len(), x.len())?;
    for (name, part) in [("weight", affine.weight), ("bias", affine.bias)] {
        part.map_or(Ok(()), |p| ensure_len(OP, name, p.len(), width))?;
    }
    map_rows(cpu, width, out, |row, out| {
        let x = &x[row * width..][..width];
        let mean = reduce(x, |x| x) / width as f32;
        let factor = 1.0 / (reduce(x, |x| (x - mean) * (x - mean)) / width as f32 + eps).sqrt();
        out.iter_mut().zip(x).for_each(|(o, x)| *o = (x - mean) * factor);
        if let Some(weight) = affine.weight {
            out.iter_mut().zip(weight).for_each(|(o, w)| *o *= w);
        }
        if let Some(bias) = affine.bias {
            out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
    });
    Ok(())
}

/// x = x * rsqrt(Σx² + eps) * factor for each row of `width` elements.
///
/// # Errors
/// The length is not a multiple of the width.
pub fn l2_norm(cpu: &Cpu, x: &mut [f32], width: usize, eps: f32, factor: f32) -> Result<()> {
    rows_of("l2_norm", "x", x.len(), width)?;
    map_rows(cpu, width, x, |_, x| {
        let by = factor / (reduce(x, |x| x * x) + eps).sqrt();
        x.iter_mut().for_each(|x| *x *= by);
    });
    Ok(())
}

/// Softmax of each row of `width` elements, in place. A row of only -infinity becomes zeros.
///
/// # Errors
/// The length is not a multiple of the width.
pub fn softmax(cpu: &Cpu, x: &mut [f32], width: usize) -> Result<()> {
    rows_of("softmax", "x", x.len(), width)?;
    map_rows(cpu, width, x, |_, x| softmax_row(x));
    Ok(())
}

/// Softmax of one row.
#[inline(always)]
pub(crate) fn softmax_row(x: &mut [f32]) {
    let largest = max(x);
    if largest == f32::NEG_INFINITY && !x.iter().any(|v| v.is_nan()) {
        x.fill(0.0);
        return;
    }
    x.iter_mut().for_each(|v| *v = math::exp(*v - largest));
    let factor = 1.0 / reduce(x, |x| x);
    x.iter_mut().for_each(|v| *v *= factor);
}

#[inline(always)]
fn rms_factor(x: &[f32], eps: f32) -> f32 {
    1.0 / (reduce(x, |x| x * x) / x.len() as f32 + eps).sqrt()
}

/// Largest element; NaN elements are passed over.
#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (parts, rest) = x.as_chunks::<LANES>();
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for part in parts {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], part[i]);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

/// Σ f(x) in 16 lanes.
#[inline(always)]
pub(crate) fn reduce(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (parts, rest) = x.as_chunks::<LANES>();
    for part in parts {
        for i in 0..LANES {
            lanes[i] += f(part[i]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f(x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}
