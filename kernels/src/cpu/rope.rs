//! Rotary position embedding from per-row cos and sin tables.

use super::Cpu;
use super::elementwise::map_rows;
use crate::error::{Result, ensure_len, ensure_value, rows_of};

/// Which elements of a head form a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// `(x[j], x[j + R/2])`: NeoX order.
    HalfSplit,
    /// `(x[2j], x[2j + 1])`: GPT-J order.
    Interleaved,
}

/// Cos and sin tables `[T, R/2]`.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// cos(angle) * attention factor.
    pub cos: &'a [f32],
    /// sin(angle) * attention factor.
    pub sin: &'a [f32],
    /// R: rotated dimensions of a head.
    pub rotary_dim: usize,
}

/// Tables to fill.
#[derive(Debug)]
pub struct TablesMut<'a> {
    /// `[T, R/2]`.
    pub cos: &'a mut [f32],
    /// `[T, R/2]`.
    pub sin: &'a mut [f32],
}

/// Fills tables for one position per row: angle = position * `inv_freq` in f32, cos and sin times `attention_factor`.
///
/// # Errors
/// The tables are not `[T, R/2]`.
pub fn fill_tables(
    inv_freq: &[f32],
    positions: &[u32],
    attention_factor: f32,
    tables: TablesMut<'_>,
) -> Result<()> {
    fill(inv_freq, positions.len(), attention_factor, tables, |t, _| positions[t])
}

/// Fills tables for three position streams (time, height, width), `positions` `[3, T]`: frequency j uses the height
/// for j = 1, 4, 7, … below 3 * `sections[1]`, the width for j = 2, 5, 8, … below 3 * `sections[2]`, else the time.
///
/// # Errors
/// `positions` is not `[3, T]` or the tables are not `[T, R/2]`.
pub fn fill_sectioned_tables(
    inv_freq: &[f32],
    positions: &[u32],
    sections: [usize; 3],
    attention_factor: f32,
    tables: TablesMut<'_>,
) -> Result<()> {
    fill_streams(inv_freq, positions, attention_factor, tables, |j| match j % 3 {
        1 if j < 3 * sections[1] => 1,
        2 if j < 3 * sections[2] => 2,
        _ => 0,
    })
}

/// Fills tables for three position streams, `positions` `[3, T]`: the first `sections[0]` frequencies use the first stream,
/// the next `sections[1]` the second, the others the third.
///
/// # Errors
/// `positions` is not `[3, T]` or the tables are not `[T, R/2]`.
pub fn fill_blocked_tables(
    inv_freq: &[f32],
    positions: &[u32],
    sections: [usize; 3],
    attention_factor: f32,
    tables: TablesMut<'_>,
) -> Result<()> {
    fill_streams(inv_freq, positions, attention_factor, tables, |j| {
        usize::from(j >= sections[0]) + usize::from(j >= sections[0] + sections[1])
    })
}

fn fill_streams(
    inv_freq: &[f32],
    positions: &[u32],
    attention_factor: f32,
    tables: TablesMut<'_>,
    stream: impl Fn(usize) -> usize,
) -> Result<()> {
    let (found, expected) = (positions.len(), "three streams of equal length");
    ensure_value("fill_tables", "positions", found, found.is_multiple_of(3), expected)?;
    let num_tokens = found / 3;
    fill(inv_freq, num_tokens, attention_factor, tables, |t, j| positions[stream(j) * num_tokens + t])
}

fn fill(
    inv_freq: &[f32],
    num_tokens: usize,
    attention_factor: f32,
    tables: TablesMut<'_>,
    position: impl Fn(usize, usize) -> u32,
) -> Result<()> {
    const OP: &str = "fill_tables";
    let half = inv_freq.len();
    ensure_len(OP, "cos", tables.cos.len(), num_tokens * half)?;
    ensure_len(OP, "sin", tables.sin.len(), num_tokens * half)?;
    for t in 0..num_tokens {
        for (j, frequency) in inv_freq.iter().enumerate() {
            let (sin, cos) = (position(t, j) as f32 * frequency).sin_cos();
            tables.cos[t * half + j] = cos * attention_factor;
            tables.sin[t * half + j] = sin * attention_factor;
        }
    }
    Ok(())
}

/// Rotates the first R dimensions of every head of `x` `[T, heads, head_dim]` in place; the rest stays.
///
/// # Errors
/// The tables do not match T, or R is odd or larger than the head.
pub fn rotate(
    cpu: &Cpu,
    x: &mut [f32],
    num_heads: usize,
    head_dim: usize,
    tables: Tables<'_>,
    pairing: Pairing,
) -> Result<()> {
    const OP: &str = "rotate";
    let r = tables.rotary_dim;
    ensure_value(
        OP,
        "rotary_dim",
        r,
        r.is_multiple_of(2) && r <= head_dim,
        format_args!("even, at most {head_dim}"),
    )?;
    let rows = rows_of(OP, "x", x.len(), num_heads * head_dim)?;
    ensure_len(OP, "cos", tables.cos.len(), rows * r / 2)?;
    ensure_len(OP, "sin", tables.sin.len(), rows * r / 2)?;
    map_rows(cpu, num_heads * head_dim, x, |t, row| {
        let (cos, sin) = (&tables.cos[t * r / 2..][..r / 2], &tables.sin[t * r / 2..][..r / 2]);
        for head in row.chunks_exact_mut(head_dim) {
            rotate_head(&mut head[..r], cos, sin, pairing);
        }
    });
    Ok(())
}

#[inline(always)]
fn rotate_head(head: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing) {
    match pairing {
        Pairing::HalfSplit => {
            let (low, high) = head.split_at_mut(head.len() / 2);
            for ((a, b), (c, s)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
                (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
            }
        }
        Pairing::Interleaved => {
            for ([a, b], (c, s)) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos.iter().zip(sin)) {
                (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
            }
        }
    }
}
