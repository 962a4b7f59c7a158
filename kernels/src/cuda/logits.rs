//! Reductions over the vocabulary. Logits are f32 `[rows, width]`.

use super::device::Cuda;
use super::indices::Indices;
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
use crate::error::{Result, ensure_len, ensure_value, rows_of};

/// Threads of a block, and the largest k of [`top_k`].
const THREADS: usize = 1024;

/// Columns of a part of a row, which one block reads.
const PART: usize = 8192;
/// f32 elements of the workspace that a key takes.
const KEY: usize = 2;

/// Index of the largest logit of each row of `width`; ties go to the lowest index, NaN never wins. The result can feed
/// the next step without a copy to the host.
///
/// # Errors
/// A length does not fit, or `out` has too little room.
pub fn argmax(cuda: &Cuda, logits: View<'_, f32>, width: usize, out: &mut Indices) -> Result<()> {
    const OP: &str = "argmax";
    let rows = rows_of(OP, "logits", logits.len(), width)?;
    let out = out.begin_write(OP, rows, width)?;
    let num_parts = width.div_ceil(PART);
    let grid = Grid::new((num_parts, rows, 1), (THREADS, 1));
    cuda.with_workspace(rows * num_parts * KEY, |best| {
        let arguments = Arguments::new().view(logits).view_mut(&best.view_mut()).int(width);
        // SAFETY: logits have `rows` rows of `width`, and the workspace a key for each part.
        unsafe { cuda.launch(OP, "argmax_parts", grid, arguments)? };
        let arguments = Arguments::new().view(best.view()).view_mut(&out.view_mut()).int(num_parts);
        // SAFETY: every part has its key, and out has room for an index per row; results are below `width`.
        unsafe { cuda.launch(OP, "argmax", Grid::of(rows, THREADS), arguments) }
    })
}

/// The `k` largest logits of each row, largest first; ties in the order of the ids, NaN last. `ids` and `values` are
/// `[rows, k]`.
///
/// # Errors
/// A length does not fit, or k is zero, larger than the width or than 1024.
pub fn top_k(
    cuda: &Cuda,
    logits: View<'_, f32>,
    width: usize,
    k: usize,
    ids: &mut ViewMut<'_, u32>,
    values: &mut ViewMut<'_, f32>,
) -> Result<()> {
    const OP: &str = "top_k";
    let rows = rows_of(OP, "logits", logits.len(), width)?;
    let most = width.min(THREADS);
    ensure_value(OP, "k", k, (1..=most).contains(&k), format_args!("between 1 and {most}"))?;
    ensure_len(OP, "ids", ids.len(), rows * k)?;
    ensure_len(OP, "values", values.len(), rows * k)?;
    let num_parts = width.div_ceil(PART);
    let stride = num_parts * k;
    // The last part may have fewer columns than k.
    let count = stride - k + k.min(width - (num_parts - 1) * PART);
    let grid = Grid::new((num_parts, rows, 1), (THREADS, 1));
    cuda.with_workspace(rows * stride * KEY, |best| {
        let arguments = Arguments::new().view(logits).view_mut(&best.view_mut()).int(width).int(k);
        // SAFETY: logits have `rows` rows of `width`, and the workspace k keys for each part.
        unsafe { cuda.launch(OP, "top_k_parts", grid, arguments)? };
        let arguments = Arguments::new().view(logits).view(best.view()).view_mut(ids).view_mut(values);
        let arguments = arguments.int(width).int(stride).int(count).int(k);
        // SAFETY: `count` keys of each row were written, ids and values have k for each.
        unsafe { cuda.launch(OP, "top_k", Grid::of(rows, THREADS), arguments) }
    })
}

/// `log(softmax(row))[id]` for each pair of `rows` and `ids`.
///
/// # Errors
/// A length does not fit, or rows or ids were not checked against the logits.
pub fn log_softmax_at(
    cuda: &Cuda,
    logits: View<'_, f32>,
    width: usize,
    rows: &Indices,
    ids: &Indices,
    out: &mut ViewMut<'_, f32>,
) -> Result<()> {
    const OP: &str = "log_softmax_at";
    let num_rows = rows_of(OP, "logits", logits.len(), width)?;
    let (rows, ids) = (rows.below(OP, "rows", num_rows)?, ids.below(OP, "ids", width)?);
    ensure_len(OP, "ids", ids.len(), rows.len())?;
    ensure_len(OP, "out", out.len(), rows.len())?;
    let arguments = Arguments::new().view(logits).view(rows).view(ids).view_mut(out).int(width);
    // SAFETY: rows and ids lie within the logits, and out has a place for each pair.
    unsafe { cuda.launch(OP, "log_softmax_at", Grid::of(rows.len(), THREADS), arguments) }
}
