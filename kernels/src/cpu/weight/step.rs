//! Reading a packed block: scales of the 16 rows and the quants of one step.

use half::f16;

use super::super::simd::{Portable, Simd};
use super::block::BLOCK;
use super::pack::{GROUP_ROWS, Layout, STEP, Scales};

/// One value per row of a group.
pub(crate) type Lanes<T> = [T; GROUP_ROWS];

/// Scales of a block: `value = scale[half] * (q - offset) + min`, half = column / 16.
pub(crate) struct BlockScales {
    /// Scale of columns 0..16 and of columns 16..32.
    pub(crate) scale: [Lanes<f32>; 2],
    /// What is added, zero for formats without it.
    pub(crate) min: Lanes<f32>,
}

/// # Safety
/// The level's features are present.
#[inline(always)]
unsafe fn half_lanes<S: Simd>(bytes: &[u8]) -> Lanes<f32> {
    let bytes = &bytes[..2 * GROUP_ROWS];
    let mut lanes = [0.0; GROUP_ROWS];
    for r in (0..GROUP_ROWS).step_by(S::LANES) {
        // SAFETY: LANES divides the 16 lanes; the features are the caller's promise.
        unsafe { S::store(lanes.as_mut_ptr().add(r), S::load_f16(bytes.as_ptr().add(2 * r))) }
    }
    lanes
}

/// The f16 at row `r` of a line of f16 scales.
#[inline(always)]
pub(crate) fn half_lane(bytes: &[u8], r: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * r], bytes[2 * r + 1]]).to_f32()
}

/// The scales of a block.
///
/// # Safety
/// The level's features are present.
#[inline(always)]
pub(crate) unsafe fn scales<S: Simd, L: Layout>(header: &[u8], body: &[u8]) -> BlockScales {
    // SAFETY: the caller's promise.
    let half_lanes = |bytes: &[u8]| unsafe { half_lanes::<S>(bytes) };
    match L::SCALES {
        Scales::Plain => {
            let d = half_lanes(body);
            BlockScales { scale: [d, d], min: [0.0; GROUP_ROWS] }
        }
        Scales::WithMin => {
            let d = half_lanes(body);
            BlockScales { scale: [d, d], min: half_lanes(&body[32..]) }
        }
        Scales::Super => {
            let (d, m) = (half_lanes(header), half_lanes(&header[32..]));
            let scale: Lanes<f32> = std::array::from_fn(|r| d[r] * f32::from(body[r]));
            BlockScales {
                scale: [scale, scale],
                min: std::array::from_fn(|r| -(m[r] * f32::from(body[16 + r]))),
            }
        }
        Scales::Super16 => {
            let d = half_lanes(header);
            let part = |h: usize| std::array::from_fn(|r| d[r] * f32::from(body[16 * h + r] as i8));
            BlockScales { scale: [part(0), part(1)], min: [0.0; GROUP_ROWS] }
        }
    }
}

/// The quants of step `s`: per row four bytes, column 4s + j in byte j.
#[inline(always)]
pub(crate) fn words<L: Layout>(body: &[u8], s: usize) -> Lanes<u32> {
    let high = &body[L::SCALE_BYTES..];
    let low = &body[L::SCALE_BYTES + L::HIGH_BYTES..];
    if L::BITS == 8 {
        return line(&low[STEP * s..]);
    }
    let mut words = line(&low[STEP * (s % 4)..]);
    for word in &mut words {
        *word = (*word >> (4 * (s / 4))) & 0x0f0f_0f0f;
    }
    let (bits, shift, mask) = match L::BITS {
        5 => (line(high), s, 0x0101_0101),
        6 => (line(&high[STEP * (s / 4)..]), 2 * (s % 4), 0x0303_0303),
        _ => return words,
    };
    for r in 0..GROUP_ROWS {
        words[r] |= ((bits[r] >> shift) & mask) << 4;
    }
    words
}

#[inline(always)]
fn line(bytes: &[u8]) -> Lanes<u32> {
    let mut words = [0; GROUP_ROWS];
    for (word, bytes) in words.iter_mut().zip(bytes[..STEP].as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// Byte `j` of a word as the integer that it stands for.
#[inline(always)]
pub(crate) fn quant<L: Layout>(word: u32, j: usize) -> i32 {
    if L::BITS == 8 {
        ((word << (24 - 8 * j)) as i32) >> 24
    } else {
        ((word >> (8 * j)) & 0xff) as i32 - L::OFFSET
    }
}

/// The f32 values of row `lane` of a block.
pub(super) fn dequantize_lane<L: Layout>(header: &[u8], body: &[u8], lane: usize, out: &mut [f32; BLOCK]) {
    // SAFETY: the portable level needs no features.
    let scales = unsafe { scales::<Portable, L>(header, body) };
    for s in 0..8 {
        let word = words::<L>(body, s)[lane];
        for j in 0..4 {
            let value = scales.scale[s / 4][lane] * quant::<L>(word, j) as f32;
            out[4 * s + j] = value + scales.min[lane];
        }
    }
}
