//! f32 inner products with quantised weights: a block of 16 rows x 32 columns is dequantised once into a panel that
//! stays in the first-level cache and serves all rows of x.
//!
//! Order per output element: columns of a block in sequence, then blocks in sequence.

use super::super::simd::Simd;
use super::super::weight::pack::{GROUP_ROWS, Layout, Scales};
use super::super::weight::{BLOCK, step};

/// Dequantised block, column-major: `[column][row]`.
type Panel = [[f32; GROUP_ROWS]; BLOCK];

/// A packed group and the f32 rows.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    /// Bytes of the group.
    pub(super) group: &'a [u8],
    /// Columns.
    pub(super) num_cols: usize,
    /// `[T, K]`.
    pub(super) x: &'a [f32],
}

/// Products of a group with any number of rows of x.
///
/// # Safety
/// The level's features are present; the group has `num_cols` columns of layout `L`, and the rows exist in x.
#[inline(always)]
pub(super) unsafe fn dot_rows<S: Simd, L: Layout>(
    operands: Operands<'_>,
    row: impl Fn(usize) -> usize,
    out: &mut [[f32; GROUP_ROWS]],
) {
    out.fill([0.0; GROUP_ROWS]);
    let mut panel = [[0.0; GROUP_ROWS]; BLOCK];
    for b in 0..operands.num_cols / BLOCK {
        let span = &operands.group[b / L::BLOCKS * L::SUPER..][..L::SUPER];
        let (header, bodies) = span.split_at(L::HEADER);
        // SAFETY: the features are the caller's promise.
        unsafe { dequantize::<S, L>(header, &bodies[b % L::BLOCKS * L::BODY..][..L::BODY], &mut panel) };
        let x = |i: usize| operands.x[row(i) * operands.num_cols + b * BLOCK..].as_ptr();
        let (tiles, rest) = out.as_chunks_mut::<4>();
        let done = 4 * tiles.len();
        for (tile, out) in tiles.iter_mut().enumerate() {
            // SAFETY: each pointer has at least 32 elements, since K is a multiple of 32.
            unsafe { accumulate::<S, 4>(&panel, std::array::from_fn(|i| x(4 * tile + i)), out) }
        }
        for (i, out) in rest.as_chunks_mut::<1>().0.iter_mut().enumerate() {
            // SAFETY: as above.
            unsafe { accumulate::<S, 1>(&panel, [x(done + i)], out) }
        }
    }
}

/// # Safety
/// The level's features are present.
#[inline(always)]
unsafe fn dequantize<S: Simd, L: Layout>(header: &[u8], body: &[u8], panel: &mut Panel) {
    // SAFETY: the features are the caller's promise; vectors lie within the 16 lanes.
    unsafe {
        let scales = step::scales::<S, L>(header, body);
        let offset = S::splat(-L::OFFSET as f32);
        for s in 0..8 {
            let words = step::words::<L>(body, s);
            for j in 0..4 {
                for r in (0..GROUP_ROWS).step_by(S::LANES) {
                    let word = words.as_ptr().add(r);
                    let quant = if L::BITS == 8 {
                        S::load_byte::<true>(word, j as u32)
                    } else {
                        S::add(S::load_byte::<false>(word, j as u32), offset)
                    };
                    let scale = S::load(scales.scale[s / 4].as_ptr().add(r));
                    // `value = scale * q` is rounded before the min is added, as in `dequantize_lane`.
                    let mut value = S::mul(scale, quant);
                    if matches!(L::SCALES, Scales::WithMin | Scales::Super) {
                        value = S::add(value, S::load(scales.min.as_ptr().add(r)));
                    }
                    S::store(panel[4 * s + j].as_mut_ptr().add(r), value);
                }
            }
        }
    }
}

/// `out[t] += panel · x[t]`.
#[inline(always)]
unsafe fn accumulate<S: Simd, const TT: usize>(
    panel: &Panel,
    x: [*const f32; TT],
    out: &mut [[f32; GROUP_ROWS]; TT],
) {
    // SAFETY: 32 columns of x exist by the caller's promise; vectors lie within the panel's and the outputs' 16 lanes.
    unsafe {
        let mut low = [S::splat(0.0); TT];
        let mut high = [S::splat(0.0); TT];
        for (k, column) in panel.iter().enumerate() {
            let w = S::load(column.as_ptr());
            for t in 0..TT {
                low[t] = S::fma(w, S::splat(*x[t].add(k)), low[t]);
            }
            if S::LANES < GROUP_ROWS {
                let w = S::load(column.as_ptr().add(GROUP_ROWS / 2));
                for t in 0..TT {
                    high[t] = S::fma(w, S::splat(*x[t].add(k)), high[t]);
                }
            }
        }
        for t in 0..TT {
            let p = out[t].as_mut_ptr();
            S::store(p, S::add(S::load(p), low[t]));
            if S::LANES < GROUP_ROWS {
                let p = p.add(GROUP_ROWS / 2);
                S::store(p, S::add(S::load(p), high[t]));
            }
        }
    }
}
