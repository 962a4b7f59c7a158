//! Embedding: rows of a weight by token id.

use super::device::Cuda;
use super::element::Element;
use super::indices::Indices;
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
use super::quantized;
use super::weight::{Format, Weight};
use crate::error::{Result, ensure_len, rows_of};

/// Writes rows `ids` of the table `[vocab, width]` to `out` `[T, width]`.
///
/// # Errors
/// The ids were not checked against the vocabulary, or `out` has the wrong length.
pub fn gather<T: Element>(
    cuda: &Cuda,
    table: &Weight,
    ids: &Indices,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "gather";
    let width = table.num_cols();
    let ids = ids.below(OP, "ids", table.num_rows())?;
    ensure_len(OP, "out", out.len(), ids.len() * width)?;
    if table.format().is_quantized() {
        return quantized::dequantize(cuda, OP, table, Some(ids), out);
    }
    let kernel = match table.format() {
        Format::F32 => T::pick("gather_f32_f32", "gather_f32_bf16"),
        Format::F16 => T::pick("gather_f16_f32", "gather_f16_bf16"),
        _ => T::pick("gather_bf16_f32", "gather_bf16_bf16"),
    };
    let arguments = Arguments::new().view(table.bytes()).view(ids).view_mut(out).int(width);
    let threads = width.div_ceil(8).next_multiple_of(32).min(256);
    // SAFETY: the ids are below the rows of the table, and out has a row of `width` for each.
    unsafe { cuda.launch(OP, kernel, Grid::of(ids.len(), threads), arguments) }
}

/// Writes rows `ids` of `x` `[T, width]` to `out` `[ids, width]`.
///
/// # Errors
/// The ids were not checked against the rows, or `out` has the wrong length.
pub fn gather_rows<T: Element>(
    cuda: &Cuda,
    x: View<'_, T>,
    width: usize,
    ids: &Indices,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "gather_rows";
    let ids = ids.below(OP, "ids", rows_of(OP, "x", x.len(), width)?)?;
    ensure_len(OP, "out", out.len(), ids.len() * width)?;
    let arguments = Arguments::new().view(x).view(ids).view_mut(out).int(width);
    let threads = width.div_ceil(8).next_multiple_of(32).min(256);
    let kernel = T::pick("gather_f32_f32", "gather_bf16_bf16");
    // SAFETY: the ids are below the rows of x, and out has a row of `width` for each.
    unsafe { cuda.launch(OP, kernel, Grid::of(ids.len(), threads), arguments) }
}
