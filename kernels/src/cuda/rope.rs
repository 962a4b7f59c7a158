//! Rotary position embedding from per-row cos and sin tables.

use super::device::Cuda;
use super::element::{Element, kernel};
use super::indices::Indices;
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
pub use crate::cpu::rope::Pairing;
use crate::error::{Result, ensure_len, ensure_value, rows_of};

/// Threads of a block.
const THREADS: usize = 256;

/// Cos and sin tables `[T, R/2]`.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// cos(angle) * attention factor.
    pub cos: View<'a, f32>,
    /// sin(angle) * attention factor.
    pub sin: View<'a, f32>,
    /// R: rotated dimensions of a head.
    pub rotary_dim: usize,
}

/// Tables to fill.
#[derive(Debug)]
pub struct TablesMut<'a> {
    /// `[T, R/2]`.
    pub cos: ViewMut<'a, f32>,
    /// `[T, R/2]`.
    pub sin: ViewMut<'a, f32>,
}

/// Fills tables for one position per row: angle = position * `inv_freq` in f32, cos and sin times `attention_factor`.
///
/// # Errors
/// The tables are not `[T, R/2]`.
pub fn fill_tables(
    cuda: &Cuda,
    inv_freq: View<'_, f32>,
    positions: &Indices,
    attention_factor: f32,
    tables: &mut TablesMut<'_>,
) -> Result<()> {
    fill(cuda, inv_freq, (positions, 1), [0; 3], attention_factor, tables)
}

/// Fills tables for three position streams (time, height, width), `positions` `[3, T]`: frequency j uses the height
/// for j = 1, 4, 7, … below 3 * `sections[1]`, the width for j = 2, 5, 8, … below 3 * `sections[2]`, else the time.
///
/// # Errors
/// `positions` is not `[3, T]` or the tables are not `[T, R/2]`.
pub fn fill_sectioned_tables(
    cuda: &Cuda,
    inv_freq: View<'_, f32>,
    positions: &Indices,
    sections: [usize; 3],
    attention_factor: f32,
    tables: &mut TablesMut<'_>,
) -> Result<()> {
    fill(cuda, inv_freq, (positions, 3), sections, attention_factor, tables)
}

fn fill(
    cuda: &Cuda,
    inv_freq: View<'_, f32>,
    (positions, streams): (&Indices, usize),
    sections: [usize; 3],
    attention_factor: f32,
    tables: &mut TablesMut<'_>,
) -> Result<()> {
    const OP: &str = "fill_tables";
    let half = inv_freq.len();
    let num_tokens = rows_of(OP, "positions", positions.len(), streams)?;
    let len = num_tokens * half;
    ensure_len(OP, "cos", tables.cos.len(), len)?;
    ensure_len(OP, "sin", tables.sin.len(), len)?;
    if len == 0 {
        return Ok(());
    }
    let positions = positions.below(OP, "positions", usize::MAX)?;
    let arguments = Arguments::new().view(inv_freq).view(positions);
    let arguments = arguments.view_mut(&tables.cos).view_mut(&tables.sin).int(num_tokens).int(half);
    let arguments = arguments.int(3 * sections[1]).int(3 * sections[2]).float(attention_factor);
    // SAFETY: the tables have T * R/2 elements; with one stream the sections are zero, so that only it is read.
    unsafe { cuda.launch(OP, "rope_tables", Grid::elements(cuda, len, 1), arguments) }
}

/// Rotates the first R dimensions of every head of `x` `[T, heads, head_dim]` in place; the rest stays.
///
/// # Errors
/// The tables do not match T, or R is odd or larger than the head.
pub fn rotate<T: Element>(
    cuda: &Cuda,
    x: &mut ViewMut<'_, T>,
    num_heads: usize,
    head_dim: usize,
    tables: Tables<'_>,
    pairing: Pairing,
) -> Result<()> {
    const OP: &str = "rotate";
    let r = tables.rotary_dim;
    let fits = r.is_multiple_of(2) && r <= head_dim;
    ensure_value(OP, "rotary_dim", r, fits, format_args!("even, at most {head_dim}"))?;
    let rows = rows_of(OP, "x", x.len(), num_heads * head_dim)?;
    ensure_len(OP, "cos", tables.cos.len(), rows * r / 2)?;
    ensure_len(OP, "sin", tables.sin.len(), rows * r / 2)?;
    let pairs = rows * num_heads * r / 2;
    let interleaved = usize::from(pairing == Pairing::Interleaved);
    let arguments = Arguments::new().view_mut(x).view(tables.cos).view(tables.sin);
    let arguments = arguments.size(pairs).int(num_heads).int(head_dim).int(r / 2).int(interleaved);
    // SAFETY: a thread owns one pair of x; tables and x have T rows.
    unsafe { cuda.launch(OP, kernel!(T, "rotate"), Grid::of(pairs.div_ceil(THREADS), THREADS), arguments) }
}
