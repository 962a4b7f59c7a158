//! Inner products with float weights that lie row-major in the checkpoint.
//!
//! Order per output element: lane l sums columns l, l + LANES, …; the lanes are added; the columns after the last
//! whole vector follow one by one.

use half::{bf16, f16};

use super::super::scratch;
use super::super::simd::Simd;
use super::super::weight::{Format, GROUP_ROWS};
use super::tile::Input;

/// Rows of x from which a weight row is converted to f32 once.
const CONVERT_FROM: usize = 6;
/// Weight rows of a register tile.
const TILE_ROWS: usize = 4;

/// An element type.
trait Element {
    const BYTES: usize;
    /// # Safety
    /// As [`Simd::load_bytes`].
    unsafe fn load<S: Simd>(p: *const u8) -> S::V;
    fn scalar(bytes: &[u8]) -> f32;
}

macro_rules! element {
    ($name:ident, $bytes:literal, $load:ident, $type:ty, $convert:expr) => {
        struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>(p: *const u8) -> S::V {
                // SAFETY: the caller promises the features and the memory.
                unsafe { S::$load(p) }
            }
            #[inline(always)]
            fn scalar(bytes: &[u8]) -> f32 {
                let raw: [u8; $bytes] = std::array::from_fn(|i| bytes[i]);
                $convert(<$type>::from_le_bytes(raw))
            }
        }
    };
}

element!(F32, 4, load_bytes, f32, std::convert::identity);
element!(Bf16, 2, load_bf16, bf16, bf16::to_f32);
element!(F16, 2, load_f16, f16, f16::to_f32);

/// Products of `count` weight rows (at most 16, `rows` holds their bytes) with rows of x.
///
/// # Safety
/// The level's features are present; `rows` has `count` rows of `num_cols` elements, and the rows exist in x.
#[inline(always)]
pub(super) unsafe fn dot_rows<S: Simd>(
    format: Format,
    rows: &[u8],
    input: &Input<'_>,
    row: impl Fn(usize) -> usize + Copy,
    out: &mut [[f32; GROUP_ROWS]],
) {
    // SAFETY: the caller's promise covers all of these.
    unsafe {
        match format {
            Format::BF16 if out.len() >= CONVERT_FROM => converted::<S, Bf16>(rows, input, row, out),
            Format::F16 if out.len() >= CONVERT_FROM => converted::<S, F16>(rows, input, row, out),
            Format::BF16 => products::<S, Bf16>(rows, input, row, out),
            Format::F16 => products::<S, F16>(rows, input, row, out),
            _ => products::<S, F32>(rows, input, row, out),
        }
    }
}

/// As `products`, after converting the rows to f32.
#[inline(always)]
unsafe fn converted<S: Simd, E: Element>(
    rows: &[u8],
    input: &Input<'_>,
    row: impl Fn(usize) -> usize + Copy,
    out: &mut [[f32; GROUP_ROWS]],
) {
    let mut wide = scratch::take(rows.len() / E::BYTES);
    let whole = wide.len() / S::LANES * S::LANES;
    for i in (0..whole).step_by(S::LANES) {
        // SAFETY: i + LANES <= len, and `rows` has as many elements.
        unsafe { S::store(wide.as_mut_ptr().add(i), E::load::<S>(rows.as_ptr().add(i * E::BYTES))) }
    }
    for (i, w) in wide.iter_mut().enumerate().skip(whole) {
        *w = E::scalar(&rows[i * E::BYTES..]);
    }
    // SAFETY: a slice of f32 is readable as bytes, in little-endian order on the targets that have a vector
    // level; `load_bytes` and `scalar` agree on it. The rest is the caller's promise.
    unsafe {
        let bytes = std::slice::from_raw_parts(wide.as_ptr().cast(), wide.len() * 4);
        products::<S, F32>(bytes, input, row, out);
    }
}

#[inline(always)]
unsafe fn products<S: Simd, E: Element>(
    rows: &[u8],
    input: &Input<'_>,
    row: impl Fn(usize) -> usize + Copy,
    out: &mut [[f32; GROUP_ROWS]],
) {
    let num_cols = input.num_cols;
    let row_bytes = num_cols * E::BYTES;
    let count = rows.len() / row_bytes;
    let x_row = |i: usize| &input.x[row(i) * num_cols..][..num_cols];
    let tokens = out.len();
    for first in (0..count).step_by(TILE_ROWS) {
        // Rows after the last repeat it; their results are not used.
        let w: [&[u8]; TILE_ROWS] =
            std::array::from_fn(|r| &rows[(first + r).min(count - 1) * row_bytes..][..row_bytes]);
        let mut put = |t: usize, r: usize, value: f32| out[t][first + r] = value;
        let mut t = 0;
        while t + 2 <= tokens {
            // SAFETY: all slices have `num_cols` elements.
            unsafe { tile::<S, E, 2>(w, [x_row(t), x_row(t + 1)], |i, r, v| put(t + i, r, v)) }
            t += 2;
        }
        if t < tokens {
            // SAFETY: as above.
            unsafe { tile::<S, E, 1>(w, [x_row(t)], |i, r, v| put(t + i, r, v)) }
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, E: Element, const TT: usize>(
    w: [&[u8]; TILE_ROWS],
    x: [&[f32]; TT],
    mut put: impl FnMut(usize, usize, f32),
) {
    let num_cols = x[0].len();
    let whole = num_cols / S::LANES * S::LANES;
    // SAFETY: vectors end at `whole` at most, within each slice.
    let acc = unsafe {
        let mut acc = [[S::splat(0.0); TILE_ROWS]; TT];
        for k in (0..whole).step_by(S::LANES) {
            let mut columns = [S::splat(0.0); TILE_ROWS];
            for r in 0..TILE_ROWS {
                columns[r] = E::load::<S>(w[r].as_ptr().add(k * E::BYTES));
            }
            for t in 0..TT {
                let x = S::load(x[t].as_ptr().add(k));
                for r in 0..TILE_ROWS {
                    acc[t][r] = S::fma(columns[r], x, acc[t][r]);
                }
            }
        }
        acc
    };
    for t in 0..TT {
        for r in 0..TILE_ROWS {
            // SAFETY: the features are present.
            let mut sum = unsafe { S::sum(acc[t][r]) };
            for k in whole..num_cols {
                sum += E::scalar(&w[r][k * E::BYTES..]) * x[t][k];
            }
            put(t, r, sum);
        }
    }
}
