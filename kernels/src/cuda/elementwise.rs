//! Elementwise operations on views of equal length, and per-row variants.

use half::bf16;

use super::device::Cuda;
use super::element::{Element, kernel};
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
pub use crate::cpu::elementwise::{Binary, Columns, Unary};
use crate::error::{Result, ensure_len, ensure_value, rows_of};

/// Number of a function in `cuda/math.cuh`.
pub(super) fn unary_code(f: Unary) -> usize {
    match f {
        Unary::Identity => 0,
        Unary::Silu => 1,
        Unary::Sigmoid => 2,
        Unary::GeluTanh => 3,
        Unary::GeluErf => 4,
        Unary::Relu => 5,
        Unary::Softplus => 6,
        Unary::Tanh => 7,
        Unary::Exp => 8,
        Unary::Neg => 9,
        Unary::Abs => 10,
        Unary::Sqrt => 11,
        Unary::Rsqrt => 12,
        Unary::Recip => 13,
        Unary::Square => 14,
        Unary::Log => 15,
        Unary::Cos => 16,
        Unary::Sin => 17,
    }
}

fn binary_code(f: Binary) -> usize {
    match f {
        Binary::Add => 0,
        Binary::Sub => 1,
        Binary::Mul => 2,
        Binary::Div => 3,
        Binary::Min => 4,
        Binary::Max => 5,
        Binary::MulSigmoid => 6,
        Binary::SiluMul => 7,
    }
}

/// out = f(x).
///
/// # Errors
/// The views differ in length.
pub fn unary<T: Element>(cuda: &Cuda, f: Unary, x: View<'_, T>, out: &mut ViewMut<'_, T>) -> Result<()> {
    const OP: &str = "unary";
    ensure_len(OP, "out", out.len(), x.len())?;
    let arguments = Arguments::new().view(x).view_mut(out).size(x.len()).int(unary_code(f));
    // SAFETY: both arrays have the length.
    unsafe { cuda.launch(OP, kernel!(T, "unary"), Grid::elements(cuda, x.len(), 8), arguments) }
}

/// x = f(x).
///
/// # Errors
/// The driver fails.
pub fn unary_in_place<T: Element>(cuda: &Cuda, f: Unary, x: &mut ViewMut<'_, T>) -> Result<()> {
    let arguments = Arguments::new().view_mut(x).view_mut(x).size(x.len()).int(unary_code(f));
    // SAFETY: the array has the length; a thread writes only what it alone reads.
    unsafe { cuda.launch("unary", kernel!(T, "unary"), Grid::elements(cuda, x.len(), 8), arguments) }
}

/// out = f(a, b). `b` may be shorter than `a` if `a` is a whole number of copies of it (a row for every row).
///
/// # Errors
/// The lengths do not fit.
pub fn binary<T: Element>(
    cuda: &Cuda,
    f: Binary,
    a: View<'_, T>,
    b: View<'_, T>,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "binary";
    ensure_len(OP, "out", out.len(), a.len())?;
    rows_of(OP, "a", a.len(), b.len())?;
    let arguments = Arguments::new().view(a).view(b).view_mut(out);
    let arguments = arguments.size(a.len()).size(b.len()).int(binary_code(f));
    // SAFETY: a and out have the length, b its period.
    unsafe { cuda.launch(OP, kernel!(T, "binary"), Grid::elements(cuda, a.len(), 8), arguments) }
}

/// a = f(a, b), with `b` as in [`binary`].
///
/// # Errors
/// The lengths do not fit.
pub fn binary_in_place<T: Element>(
    cuda: &Cuda,
    f: Binary,
    a: &mut ViewMut<'_, T>,
    b: View<'_, T>,
) -> Result<()> {
    const OP: &str = "binary_in_place";
    rows_of(OP, "a", a.len(), b.len())?;
    let arguments = Arguments::new().view_mut(a).view(b).view_mut(a);
    let arguments = arguments.size(a.len()).size(b.len()).int(binary_code(f));
    // SAFETY: a has the length, b its period; a thread writes only what it alone reads.
    unsafe { cuda.launch(OP, kernel!(T, "binary"), Grid::elements(cuda, a.len(), 8), arguments) }
}

/// out = x * factor + offset.
///
/// # Errors
/// The views differ in length.
pub fn scale<T: Element>(
    cuda: &Cuda,
    x: View<'_, T>,
    factor: f32,
    offset: f32,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "scale";
    ensure_len(OP, "out", out.len(), x.len())?;
    let arguments = Arguments::new().view(x).view_mut(out).size(x.len()).float(factor).float(offset);
    // SAFETY: both arrays have the length.
    unsafe { cuda.launch(OP, kernel!(T, "scale"), Grid::elements(cuda, x.len(), 8), arguments) }
}

/// x = x * factor + offset.
///
/// # Errors
/// The driver fails.
pub fn scale_in_place<T: Element>(
    cuda: &Cuda,
    x: &mut ViewMut<'_, T>,
    factor: f32,
    offset: f32,
) -> Result<()> {
    let arguments = Arguments::new().view_mut(x).view_mut(x).size(x.len()).float(factor).float(offset);
    // SAFETY: the array has the length; a thread writes only what it alone reads.
    unsafe { cuda.launch("scale", kernel!(T, "scale"), Grid::elements(cuda, x.len(), 8), arguments) }
}

/// x = min(max(x, low), high); a NaN stays.
///
/// # Errors
/// The driver fails.
pub fn clamp_in_place<T: Element>(cuda: &Cuda, x: &mut ViewMut<'_, T>, low: f32, high: f32) -> Result<()> {
    let arguments = Arguments::new().view_mut(x).size(x.len()).float(low).float(high);
    // SAFETY: the array has the length; a thread writes only what it alone reads.
    unsafe { cuda.launch("clamp", kernel!(T, "clamp"), Grid::elements(cuda, x.len(), 8), arguments) }
}

/// out = f(gate) * up.
///
/// # Errors
/// The views differ in length.
pub fn gated<T: Element>(
    cuda: &Cuda,
    f: Unary,
    gate: View<'_, T>,
    up: View<'_, T>,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "gated";
    ensure_len(OP, "up", up.len(), gate.len())?;
    ensure_len(OP, "out", out.len(), gate.len())?;
    let arguments = Arguments::new().view(gate).view(up).view_mut(out).size(gate.len()).int(unary_code(f));
    // SAFETY: three arrays of the length.
    unsafe { cuda.launch(OP, kernel!(T, "gated"), Grid::elements(cuda, gate.len(), 8), arguments) }
}

/// out = f(gate) * up for x `[T, 2 * width]`, a row being the gate and then up; out is `[T, width]`.
///
/// # Errors
/// The lengths do not fit.
pub fn gated_halves<T: Element>(
    cuda: &Cuda,
    f: Unary,
    x: View<'_, T>,
    width: usize,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "gated_halves";
    let rows = rows_of(OP, "out", out.len(), width)?;
    ensure_len(OP, "x", x.len(), 2 * out.len())?;
    let arguments = Arguments::new().view(x).view_mut(out).size(rows).int(width).int(unary_code(f));
    // SAFETY: out has rows * width elements and x twice as many.
    unsafe {
        cuda.launch(
            OP,
            kernel!(T, "gated_halves"),
            Grid::elements(cuda, out.len(), 8).overlapping(),
            arguments,
        )
    }
}

/// Multiplies row t of `x` by `factors[t]`.
///
/// # Errors
/// The length of `x` is not a multiple of the number of factors.
pub fn mul_rows<T: Element>(cuda: &Cuda, x: &mut ViewMut<'_, T>, factors: View<'_, f32>) -> Result<()> {
    const OP: &str = "mul_rows";
    if factors.is_empty() {
        return ensure_len(OP, "x", x.len(), 0);
    }
    rows_of(OP, "x", x.len(), factors.len())?;
    let width = x.len() / factors.len();
    let arguments = Arguments::new().view_mut(x).view(factors).size(factors.len()).int(width);
    // SAFETY: x has a row of `width` for every factor; a thread writes only what it alone reads.
    unsafe { cuda.launch(OP, kernel!(T, "mul_rows"), Grid::elements(cuda, x.len(), 1), arguments) }
}

/// Adds the f32 row `bias` to every row of `x`.
///
/// # Errors
/// The length of `x` is not a multiple of that of the bias.
pub fn add_bias<T: Element>(cuda: &Cuda, x: &mut ViewMut<'_, T>, bias: View<'_, f32>) -> Result<()> {
    const OP: &str = "add_bias";
    let rows = rows_of(OP, "x", x.len(), bias.len())?;
    let arguments = Arguments::new().view_mut(x).view(bias).size(rows).int(bias.len());
    // SAFETY: x has rows of the bias's length; a thread writes only what it alone reads.
    unsafe { cuda.launch(OP, kernel!(T, "add_bias"), Grid::elements(cuda, x.len(), 1), arguments) }
}

/// Copies `count` columns of every row of `x` into columns of the rows of `out`; the other columns stay.
///
/// # Errors
/// The columns do not lie within the rows, or the numbers of rows differ.
pub fn copy_columns<T: Element>(
    cuda: &Cuda,
    x: View<'_, T>,
    from: Columns,
    count: usize,
    out: &mut ViewMut<'_, T>,
    to: Columns,
) -> Result<()> {
    const OP: &str = "copy_columns";
    let rows = rows_of(OP, "x", x.len(), from.width)?;
    for (name, columns) in [("from", from), ("to", to)] {
        let inside = columns.start.saturating_add(count) <= columns.width;
        ensure_value(OP, name, columns.start, inside, "columns within the row")?;
    }
    ensure_len(OP, "out", out.len(), rows * to.width)?;
    if count == 0 {
        return Ok(());
    }
    let arguments = Arguments::new().view(x).view_mut(out).size(rows).int(count);
    let arguments = arguments.int(from.width).int(from.start).int(to.width).int(to.start);
    // SAFETY: the columns lie within the rows of both arrays.
    unsafe { cuda.launch(OP, kernel!(T, "copy_columns"), Grid::elements(cuda, rows * count, 1), arguments) }
}

/// out = x rounded to bf16.
///
/// # Errors
/// The views differ in length.
pub fn to_bf16(cuda: &Cuda, x: View<'_, f32>, out: &mut ViewMut<'_, bf16>) -> Result<()> {
    const OP: &str = "to_bf16";
    ensure_len(OP, "out", out.len(), x.len())?;
    let arguments = Arguments::new().view(x).view_mut(out).size(x.len());
    // SAFETY: both arrays have the length.
    unsafe { cuda.launch(OP, "convert_f32_bf16", Grid::elements(cuda, x.len(), 1), arguments) }
}

/// out = x.
///
/// # Errors
/// The views differ in length.
pub fn to_f32(cuda: &Cuda, x: View<'_, bf16>, out: &mut ViewMut<'_, f32>) -> Result<()> {
    const OP: &str = "to_f32";
    ensure_len(OP, "out", out.len(), x.len())?;
    let arguments = Arguments::new().view(x).view_mut(out).size(x.len());
    // SAFETY: both arrays have the length.
    unsafe { cuda.launch(OP, "convert_bf16_f32", Grid::elements(cuda, x.len(), 1), arguments) }
}
