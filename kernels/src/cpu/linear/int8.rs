//! Integer inner products of a packed group with quantised rows.
//!
//! Per 32 columns the products are summed exactly in integers; the block results enter an f32 accumulator per output
//! element with fused multiply-adds, blocks in order. All levels compute the same bits.

use super::super::simd::{Portable, Simd};
use super::super::weight::pack::{GROUP_ROWS, Layout, Scales};
use super::super::weight::{BLOCK, step};
use super::quantize::QuantizedRows;

/// A packed group, its width and the quantised rows.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    /// Bytes of the group.
    pub(super) group: &'a [u8],
    /// Blocks of 32 columns.
    pub(super) num_blocks: usize,
    /// The rows.
    pub(super) x: &'a QuantizedRows,
}

/// Inner products at one level.
pub(crate) trait Int8Dot {
    /// Products of the 16 rows of a group with `TT` rows of x.
    ///
    /// # Safety
    /// The level's features are present; the group has `num_blocks` blocks of layout `L`, and the rows exist in x
    /// with that width.
    unsafe fn dot<L: Layout, const TT: usize>(
        operands: Operands<'_>,
        rows: [usize; TT],
        out: &mut [[f32; GROUP_ROWS]; TT],
    );
}

/// Products of a group with any number of rows.
///
/// # Safety
/// As [`Int8Dot::dot`].
#[inline(always)]
pub(super) unsafe fn dot_rows<S: Simd, L: Layout>(
    operands: Operands<'_>,
    row: impl Fn(usize) -> usize,
    out: &mut [[f32; GROUP_ROWS]],
) {
    let (tiles, rest) = out.as_chunks_mut::<4>();
    for (tile, out) in tiles.iter_mut().enumerate() {
        // SAFETY: the caller promises the rows and the layout.
        unsafe { S::dot::<L, 4>(operands, std::array::from_fn(|i| row(4 * tile + i)), out) }
    }
    let mut at = 4 * tiles.len();
    let (tiles, rest) = rest.as_chunks_mut::<2>();
    for out in tiles {
        // SAFETY: as above.
        unsafe { S::dot::<L, 2>(operands, [row(at), row(at + 1)], out) }
        at += 2;
    }
    for out in rest.as_chunks_mut::<1>().0 {
        // SAFETY: as above.
        unsafe { S::dot::<L, 1>(operands, [row(at)], out) }
    }
}

impl Int8Dot for Portable {
    unsafe fn dot<L: Layout, const TT: usize>(
        operands: Operands<'_>,
        rows: [usize; TT],
        out: &mut [[f32; GROUP_ROWS]; TT],
    ) {
        *out = [[0.0; GROUP_ROWS]; TT];
        for b in 0..operands.num_blocks {
            let span = &operands.group[b / L::BLOCKS * L::SUPER..][..L::SUPER];
            let (header, bodies) = span.split_at(L::HEADER);
            let body = &bodies[b % L::BLOCKS * L::BODY..][..L::BODY];
            for (out, &row) in out.iter_mut().zip(&rows) {
                dot_block::<L>(header, body, operands, row * operands.num_blocks + b, out);
            }
        }
    }
}

/// Adds the products of one block to the accumulators.
fn dot_block<L: Layout>(
    header: &[u8],
    body: &[u8],
    operands: Operands<'_>,
    block: usize,
    out: &mut [f32; GROUP_ROWS],
) {
    let x = &operands.x.quants[block * BLOCK..][..BLOCK];
    let (scale, sum) = (operands.x.scales[block], operands.x.sums[block]);
    let halves = integer_dots::<L>(body, x);
    // SAFETY: the portable level needs no features.
    let scales = unsafe { step::scales::<Portable, L>(header, body) };
    for (r, out) in out.iter_mut().enumerate() {
        let (dot, d) = if L::SCALES == Scales::Super16 {
            let sub = |h: usize| i32::from(body[16 * h + r] as i8);
            (sub(0) * halves[0][r] + sub(1) * halves[1][r], step::half_lane(header, r))
        } else {
            (halves[0][r] + halves[1][r], scales.scale[0][r])
        };
        *out = (dot as f32).mul_add(d * scale, *out);
        if matches!(L::SCALES, Scales::WithMin | Scales::Super) {
            *out = scales.min[r].mul_add(sum, *out);
        }
    }
}

/// Σ (q - offset) x over columns 0..16 and 16..32.
fn integer_dots<L: Layout>(body: &[u8], x: &[i8]) -> [[i32; GROUP_ROWS]; 2] {
    let mut dots = [[0; GROUP_ROWS]; 2];
    for s in 0..8 {
        let words = step::words::<L>(body, s);
        for (dot, word) in dots[s / 4].iter_mut().zip(words) {
            for j in 0..4 {
                *dot += step::quant::<L>(word, j) * i32::from(x[4 * s + j]);
            }
        }
    }
    dots
}
