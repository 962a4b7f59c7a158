//! Linear layers: y = x Wᵀ for one row of x or thousands.
//!
//! [`linear`] computes several weights that share x in one dispatch. Work is cut into groups of 16 weight rows and
//! runs of x rows; the inner product of one output element always runs over the columns in the same order, so an
//! output does not depend on the number of x rows, on the other rows or on the number of threads.

mod epilogue;
mod float;
mod heads;
mod int8;
#[cfg(target_arch = "x86_64")]
mod int8_avx2;
#[cfg(target_arch = "x86_64")]
mod int8_avx512;
mod panel;
mod quantize;
mod tile;

pub use epilogue::Epilogue;
pub use heads::head_linear;

use super::Cpu;
use super::shared::SharedSlice;
use super::weight::Weight;
use crate::error::{Result, ensure_len, ensure_value, rows_of};
use epilogue::Target;
pub(crate) use int8::Int8Dot;
pub(crate) use quantize::QuantizedRows;
use smallvec::SmallVec;
use tile::{Input, Rows, Task};

/// How activations enter the products with quantised weights. Float weights always use f32 products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activations {
    /// f32 products of the dequantised weight.
    F32,
    /// x is rounded to int8 with one scale per 32 columns; products and sums within 32 columns are exact integers.
    Int8,
}

/// One weight applied to the shared x.
pub struct Projection<'a> {
    /// `[N, K]`.
    pub weight: &'a Weight,
    /// `[N]`, added to the product.
    pub bias: Option<&'a [f32]>,
    /// What happens to product + bias.
    pub epilogue: Epilogue<'a>,
    /// `[T, N]`.
    pub out: &'a mut [f32],
}

impl<'a> Projection<'a> {
    /// out = x Wᵀ.
    #[must_use]
    pub fn new(weight: &'a Weight, out: &'a mut [f32]) -> Self {
        Self { weight, bias: None, epilogue: Epilogue::Store, out }
    }

    /// Adds a bias.
    #[must_use]
    pub fn bias(self, bias: Option<&'a [f32]>) -> Self {
        Self { bias, ..self }
    }

    /// Sets the epilogue.
    #[must_use]
    pub fn epilogue(self, epilogue: Epilogue<'a>) -> Self {
        Self { epilogue, ..self }
    }
}

/// Computes every projection of `x` `[T, K]`. All weights have the same K; T follows from the length of `x`.
///
/// # Errors
/// A slice does not have the length that T, N and K ask for, or the weights differ in K. Nothing is written then.
pub fn linear(
    cpu: &Cpu,
    x: &[f32],
    activations: Activations,
    projections: &mut [Projection<'_>],
) -> Result<()> {
    const OP: &str = "linear";
    let Some(first) = projections.first() else { return Ok(()) };
    let num_cols = first.weight.num_cols();
    let num_tokens = rows_of(OP, "x", x.len(), num_cols)?;
    for p in projections.iter() {
        check(p, num_tokens, num_cols)?;
    }
    let targets: SmallVec<[_; 4]> = projections.iter_mut().map(Target::new).collect();
    let rows = Rows::From(0);
    let tasks = targets.iter().map(|target| Task::new(target, rows, rows, num_tokens));
    let tasks = tasks.collect::<Result<SmallVec<[_; 4]>>>()?;
    with_input(cpu, x, num_cols, activations, &tasks, |input| {
        // SAFETY: rows are below T, tasks differ in target or rows, and `with_input` has looked at the tasks.
        unsafe { tile::run(cpu, input, &tasks) }
    });
    Ok(())
}

/// One weight applied to listed rows of x; see [`project_rows`].
pub(crate) struct Projected<'a> {
    /// `[N, K]`.
    pub(crate) weight: &'a Weight,
    /// What happens to the product.
    pub(crate) epilogue: Epilogue<'a>,
    /// Rows of x.
    pub(crate) x_rows: &'a [u32],
    /// Rows of the output, one for each row of x; no row occurs twice in a call.
    pub(crate) out_rows: &'a [u32],
}

/// Computes listed rows with one weight each into `out` `[rows, N]`.
pub(crate) fn project_rows(
    cpu: &Cpu,
    x: &[f32],
    activations: Activations,
    projected: &[Projected<'_>],
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "expert_linear";
    let Some(first) = projected.first() else { return Ok(()) };
    let (num_rows, num_cols) = (first.weight.num_rows(), first.weight.num_cols());
    let out = SharedSlice::new(out);
    for p in projected {
        check_shape(OP, p.weight, num_rows, num_cols)?;
        if let Epilogue::Gated { up, .. } = p.epilogue {
            check_shape(OP, up, num_rows, num_cols)?;
        }
    }
    let targets: Vec<_> = projected.iter().map(|p| Target::shared(p.weight, p.epilogue, out)).collect();
    let tasks = projected
        .iter()
        .zip(&targets)
        .map(|(p, target)| Task::new(target, Rows::List(p.x_rows), Rows::List(p.out_rows), p.x_rows.len()));
    let tasks = tasks.collect::<Result<Vec<_>>>()?;
    with_input(cpu, x, num_cols, activations, &tasks, |input| {
        // SAFETY: the caller passes existing rows and no output row twice.
        unsafe { tile::run(cpu, input, &tasks) }
    });
    Ok(())
}

fn check_shape(op: &'static str, weight: &Weight, num_rows: usize, num_cols: usize) -> Result<()> {
    ensure_value(
        op,
        "num_rows",
        weight.num_rows(),
        weight.num_rows() == num_rows,
        format_args!("{num_rows}"),
    )?;
    ensure_value(op, "num_cols", weight.num_cols(), weight.num_cols() == num_cols, format_args!("{num_cols}"))
}

/// Calls `f` with x in the forms that the tasks need.
fn with_input(
    cpu: &Cpu,
    x: &[f32],
    num_cols: usize,
    activations: Activations,
    tasks: &[Task<'_>],
    f: impl FnOnce(&Input<'_>),
) {
    if activations == Activations::Int8 && tasks.iter().any(Task::reads_packed) {
        cpu.with_quantized_rows(|rows| {
            rows.fill(cpu, x, num_cols);
            f(&Input { x, num_cols, quantized: Some(rows) });
        });
    } else {
        f(&Input { x, num_cols, quantized: None });
    }
}

fn check(p: &Projection<'_>, num_tokens: usize, num_cols: usize) -> Result<()> {
    const OP: &str = "linear";
    let num_rows = p.weight.num_rows();
    let expected = num_tokens * num_rows;
    check_shape(OP, p.weight, num_rows, num_cols)?;
    ensure_len(OP, "out", p.out.len(), expected)?;
    if let Some(bias) = p.bias {
        ensure_len(OP, "bias", bias.len(), num_rows)?;
    }
    match p.epilogue {
        Epilogue::Store | Epilogue::Accumulate => Ok(()),
        Epilogue::Residual(residual) => ensure_len(OP, "residual", residual.len(), expected),
        Epilogue::Gated { up, up_bias, .. } => {
            check_shape(OP, up, num_rows, num_cols)?;
            up_bias.map_or(Ok(()), |bias| ensure_len(OP, "up_bias", bias.len(), num_rows))
        }
    }
}
