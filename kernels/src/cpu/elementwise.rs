//! Elementwise operations on f32 slices of equal length, and per-row variants.

use super::isa::Kernel;
use super::shared::SharedSlice;
use super::simd::Simd;
use super::{Cpu, math};
use crate::error::{Result, ensure_len, ensure_value, rows_of};

/// Elements below which one thread works alone; also the smallest part that a thread takes.
const GRAIN: usize = 1 << 13;

/// Elements that an in-place binary operation copies at a time.
const COPY: usize = 256;

/// A function of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Unary {
    Identity,
    Silu,
    Sigmoid,
    /// GELU, tanh approximation.
    GeluTanh,
    /// GELU, exact (error function).
    GeluErf,
    Relu,
    /// ln(1 + e^x).
    Softplus,
    Tanh,
    Exp,
    Neg,
    Abs,
    Sqrt,
    Rsqrt,
    Recip,
    Square,
    Log,
    Cos,
    Sin,
}

/// A function of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    /// a * sigmoid(b).
    MulSigmoid,
    /// silu(a) * b.
    SiluMul,
}

/// How a gate and what it lets through become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// f(gate) * up.
    Unary(Unary),
    /// silu(min(gate, limit)) * clamp(up, ±limit).
    ClampedSilu {
        /// Largest gate, largest magnitude of up.
        limit: f32,
    },
    /// g * sigmoid(alpha * g) * (clamp(up, ±limit) + 1) with g = min(gate, limit).
    SwigluOai {
        /// Largest gate, largest magnitude of up.
        limit: f32,
        /// Slope of the sigmoid.
        alpha: f32,
    },
}

impl From<Unary> for Gate {
    fn from(f: Unary) -> Self {
        Self::Unary(f)
    }
}

/// min(max(v, low), high); a NaN stays.
#[inline(always)]
fn clamp(v: f32, low: f32, high: f32) -> f32 {
    let raised = if v < low { low } else { v };
    if raised > high { high } else { raised }
}

impl Gate {
    /// gate = f(gate, up).
    #[inline(always)]
    pub(crate) fn apply(self, gate: &mut [f32], up: &[f32]) {
        #[inline(always)]
        fn each(gate: &mut [f32], up: &[f32], f: impl Fn(f32, f32) -> f32) {
            gate.iter_mut().zip(up).for_each(|(g, u)| *g = f(*g, *u));
        }
        let below = |g, limit| clamp(g, f32::NEG_INFINITY, limit);
        match self {
            Self::Unary(f) => {
                f.apply(gate);
                each(gate, up, |g, u| g * u);
            }
            Self::ClampedSilu { limit } => {
                each(gate, up, |g, u| math::silu(below(g, limit)) * clamp(u, -limit, limit));
            }
            Self::SwigluOai { limit, alpha } => each(gate, up, |g, u| {
                let g = below(g, limit);
                g * math::sigmoid(alpha * g) * (clamp(u, -limit, limit) + 1.0)
            }),
        }
    }
}

impl Unary {
    /// Applies the function in place.
    #[inline(always)]
    pub(crate) fn apply(self, values: &mut [f32]) {
        #[inline(always)]
        fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
            values.iter_mut().for_each(|v| *v = f(*v));
        }
        match self {
            Self::Identity => {}
            Self::Silu => each(values, math::silu),
            Self::Sigmoid => each(values, math::sigmoid),
            Self::GeluTanh => each(values, math::gelu_tanh),
            Self::GeluErf => each(values, math::gelu_erf),
            // Not `max`, which would turn NaN into 0.
            Self::Relu => each(values, |v| if v < 0.0 { 0.0 } else { v }),
            Self::Softplus => each(values, math::softplus),
            Self::Tanh => each(values, math::tanh),
            Self::Exp => each(values, math::exp),
            Self::Neg => each(values, |v| -v),
            Self::Abs => each(values, f32::abs),
            Self::Sqrt => each(values, f32::sqrt),
            Self::Rsqrt => each(values, |v| 1.0 / v.sqrt()),
            Self::Recip => each(values, |v| 1.0 / v),
            Self::Square => each(values, |v| v * v),
            Self::Log => each(values, f32::ln),
            Self::Cos => each(values, f32::cos),
            Self::Sin => each(values, f32::sin),
        }
    }
}

impl Binary {
    /// out = f(a, b).
    #[inline(always)]
    fn apply(self, a: &[f32], b: &[f32], out: &mut [f32]) {
        #[inline(always)]
        fn each(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
            out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (a, b))| *o = f(*a, *b));
        }
        match self {
            Self::Add => each(a, b, out, |a, b| a + b),
            Self::Sub => each(a, b, out, |a, b| a - b),
            Self::Mul => each(a, b, out, |a, b| a * b),
            Self::Div => each(a, b, out, |a, b| a / b),
            // Comparisons that keep a NaN of either side.
            Self::Min => each(a, b, out, |a, b| if a < b || a.is_nan() { a } else { b }),
            Self::Max => each(a, b, out, |a, b| if a > b || a.is_nan() { a } else { b }),
            Self::MulSigmoid => each(a, b, out, |a, b| a * math::sigmoid(b)),
            Self::SiluMul => each(a, b, out, |a, b| math::silu(a) * b),
        }
    }

    /// a = f(a, b).
    #[inline(always)]
    fn apply_in_place(self, a: &mut [f32], b: &[f32]) {
        let mut copy = [0.0; COPY];
        for (a, b) in a.chunks_mut(COPY).zip(b.chunks(COPY)) {
            let copy = &mut copy[..a.len()];
            copy.copy_from_slice(a);
            self.apply(copy, b, a);
        }
    }
}

/// out = f(x).
///
/// # Errors
/// The slices differ in length.
pub fn unary(cpu: &Cpu, f: Unary, x: &[f32], out: &mut [f32]) -> Result<()> {
    ensure_len("unary", "out", out.len(), x.len())?;
    map_parts(cpu, out, |range, out| {
        out.copy_from_slice(&x[range]);
        f.apply(out);
    });
    Ok(())
}

/// x = f(x).
pub fn unary_in_place(cpu: &Cpu, f: Unary, x: &mut [f32]) {
    map_parts(cpu, x, |_, x| f.apply(x));
}

/// out = f(a, b). `b` may be shorter than `a` if `a` is a whole number of copies of it (a row for every row).
///
/// # Errors
/// The lengths do not fit.
pub fn binary(cpu: &Cpu, f: Binary, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<()> {
    const OP: &str = "binary";
    ensure_len(OP, "out", out.len(), a.len())?;
    if b.len() == a.len() {
        map_parts(cpu, out, |range, out| f.apply(&a[range.clone()], &b[range], out));
        return Ok(());
    }
    rows_of(OP, "a", a.len(), b.len())?;
    map_rows(cpu, b.len(), out, |row, out| f.apply(&a[row * b.len()..][..b.len()], b, out));
    Ok(())
}

/// a = f(a, b), with `b` as in [`binary`].
///
/// # Errors
/// The lengths do not fit.
pub fn binary_in_place(cpu: &Cpu, f: Binary, a: &mut [f32], b: &[f32]) -> Result<()> {
    if a.len() == b.len() {
        map_parts(cpu, a, |range, a| f.apply_in_place(a, &b[range]));
        return Ok(());
    }
    rows_of("binary_in_place", "a", a.len(), b.len())?;
    map_rows(cpu, b.len(), a, |_, a| f.apply_in_place(a, b));
    Ok(())
}

/// out = x * factor + offset.
///
/// # Errors
/// The slices differ in length.
pub fn scale(cpu: &Cpu, x: &[f32], factor: f32, offset: f32, out: &mut [f32]) -> Result<()> {
    ensure_len("scale", "out", out.len(), x.len())?;
    map_parts(cpu, out, |range, out| {
        out.iter_mut().zip(&x[range]).for_each(|(o, x)| *o = x * factor + offset);
    });
    Ok(())
}

/// x = min(max(x, low), high); a NaN stays.
pub fn clamp_in_place(cpu: &Cpu, x: &mut [f32], low: f32, high: f32) {
    map_parts(cpu, x, |_, x| x.iter_mut().for_each(|v| *v = clamp(*v, low, high)));
}

/// out = f(gate) * up.
///
/// # Errors
/// The slices differ in length.
pub fn gated(cpu: &Cpu, f: Unary, gate: &[f32], up: &[f32], out: &mut [f32]) -> Result<()> {
    const OP: &str = "gated";
    ensure_len(OP, "up", up.len(), gate.len())?;
    ensure_len(OP, "out", out.len(), gate.len())?;
    map_parts(cpu, out, |range, out| {
        out.copy_from_slice(&gate[range.clone()]);
        f.apply(out);
        out.iter_mut().zip(&up[range]).for_each(|(o, u)| *o *= u);
    });
    Ok(())
}

/// Multiplies row t of `x` by `factors[t]`.
///
/// # Errors
/// The length of `x` is not a multiple of the number of factors.
pub fn mul_rows(cpu: &Cpu, x: &mut [f32], factors: &[f32]) -> Result<()> {
    if factors.is_empty() {
        return ensure_len("mul_rows", "x", x.len(), 0);
    }
    rows_of("mul_rows", "x", x.len(), factors.len())?;
    let width = x.len() / factors.len();
    map_rows(cpu, width.max(1), x, |row, x| x.iter_mut().for_each(|v| *v *= factors[row]));
    Ok(())
}

/// A run of columns in rows of a given width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Width of the rows.
    pub width: usize,
    /// First column.
    pub start: usize,
}

/// Copies `count` columns of every row of `x` into columns of the rows of `out`; the other columns stay.
///
/// # Errors
/// The columns do not lie within the rows, or the numbers of rows differ.
pub fn copy_columns(x: &[f32], from: Columns, count: usize, out: &mut [f32], to: Columns) -> Result<()> {
    const OP: &str = "copy_columns";
    let rows = rows_of(OP, "x", x.len(), from.width)?;
    ensure_value(
        OP,
        "from",
        from.start,
        from.start.saturating_add(count) <= from.width,
        "columns within the row",
    )?;
    ensure_value(OP, "to", to.start, to.start.saturating_add(count) <= to.width, "columns within the row")?;
    ensure_len(OP, "out", out.len(), rows * to.width)?;
    for (x, out) in x.chunks_exact(from.width).zip(out.chunks_exact_mut(to.width)) {
        out[to.start..to.start + count].copy_from_slice(&x[from.start..from.start + count]);
    }
    Ok(())
}

/// Calls `f(range, part)` for parts of `out` on all workers, compiled for the level.
pub(crate) fn map_parts<F>(cpu: &Cpu, out: &mut [f32], f: F)
where
    F: Fn(std::ops::Range<usize>, &mut [f32]) + Sync,
{
    let len = out.len();
    let out = SharedSlice::new(out);
    cpu.pool().for_each(len, GRAIN, |range| {
        // SAFETY: ranges of `for_each` do not overlap and lie within `len`.
        let part = unsafe { out.part(range.clone()) };
        cpu.launch(Part { f: &f, range, part });
    });
}

/// Calls `f(row, part)` for each row of `width` elements of `out` on all workers, compiled for the level.
pub(crate) fn map_rows<F>(cpu: &Cpu, width: usize, out: &mut [f32], f: F)
where
    F: Fn(usize, &mut [f32]) + Sync,
{
    let rows = out.len() / width;
    let out = SharedSlice::new(out);
    cpu.pool().for_each(rows, (GRAIN / width).max(1), |range| {
        // SAFETY: ranges of `for_each` do not overlap and lie within the rows.
        let part = unsafe { out.part(range.start * width..range.end * width) };
        cpu.launch(RowsPart { f: &f, first: range.start, width, part });
    });
}

struct Part<'a, F> {
    f: &'a F,
    range: std::ops::Range<usize>,
    part: &'a mut [f32],
}

impl<F: Fn(std::ops::Range<usize>, &mut [f32])> Kernel for Part<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        (self.f)(self.range, self.part);
    }
}

struct RowsPart<'a, F> {
    f: &'a F,
    first: usize,
    width: usize,
    part: &'a mut [f32],
}

impl<F: Fn(usize, &mut [f32])> Kernel for RowsPart<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (i, row) in self.part.chunks_exact_mut(self.width).enumerate() {
            (self.f)(self.first + i, row);
        }
    }
}
