//! Reading a packed block: scales of the 16 rows and the quants of one step.

use half::f16;

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

#[inline(always)]
fn half_lanes(bytes: &[u8]) -> Lanes<f32> {
    let bytes = &bytes[..2 * GROUP_ROWS];
    std::array::from_fn(|r| f16::from_le_bytes([bytes[2 * r], bytes[2 * r + 1]]).to_f32())
}

/// The f16 at row `r` of a line of f16 scales.
#[inline(always)]
pub(crate) fn half_lane(bytes: &[u8], r: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * r], bytes[2 * r + 1]]).to_f32()
}

/// The scales of a block.
#[inline(always)]
pub(crate) fn scales<L: Layout>(header: &[u8], body: &[u8]) -> BlockScales {
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
    let nibbles = line(&low[STEP * (s % 4)..]).map(|w| (w >> (4 * (s / 4))) & 0x0f0f_0f0f);
    match L::BITS {
        5 => {
            let bits = line(high);
            std::array::from_fn(|r| nibbles[r] | ((bits[r] >> s) & 0x0101_0101) << 4)
        }
        6 => {
            let bits = line(&high[STEP * (s / 4)..]);
            std::array::from_fn(|r| nibbles[r] | ((bits[r] >> (2 * (s % 4))) & 0x0303_0303) << 4)
        }
        _ => nibbles,
    }
}

#[inline(always)]
fn line(bytes: &[u8]) -> Lanes<u32> {
    let bytes = &bytes[..STEP];
    std::array::from_fn(|r| {
        u32::from_le_bytes([bytes[4 * r], bytes[4 * r + 1], bytes[4 * r + 2], bytes[4 * r + 3]])
    })
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
    let scales = scales::<L>(header, body);
    for s in 0..8 {
        let word = words::<L>(body, s)[lane];
        for j in 0..4 {
            let value = scales.scale[s / 4][lane] * quant::<L>(word, j) as f32;
            out[4 * s + j] = value + scales.min[lane];
        }
    }
}
