//! Quantised weights on the device: the blocks of a GGUF matrix, cut up into planes of equal parts.
//!
//! A row-major run of blocks of 32 columns has its quants, high bits, scales and the scales of super-blocks in a plane
//! each, as `cuda/quantized/blocks.cuh` describes, so that lanes that work on neighbouring blocks read neighbouring
//! bytes. No bit is lost or added.

use crate::cpu::Format;
use crate::cpu::weight::BLOCK;
use crate::cpu::weight::block::{self, RawBlock};

/// Alignment of a plane.
const ALIGNMENT: usize = 256;

/// Bytes of a block in each plane; `supers` is per eight blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) quants: usize,
    pub(super) high: usize,
    pub(super) scales: usize,
    pub(super) supers: usize,
}

impl Sizes {
    pub(super) fn of(format: Format) -> Self {
        let (quants, high) = match format {
            Format::Q8_0 => (32, 0),
            Format::Q5_0 | Format::Q5_1 | Format::Q5_K => (16, 4),
            Format::Q6_K => (16, 8),
            _ => (16, 0),
        };
        let (scales, supers) = match format {
            Format::Q4_1 | Format::Q5_1 => (4, 0),
            Format::Q4_K | Format::Q5_K => (2, 4),
            Format::Q6_K => (2, 2),
            _ => (2, 0),
        };
        Self { quants, high, scales, supers }
    }

    /// Where the four planes of `num_blocks` blocks start, and the bytes of all.
    pub(super) fn offsets(self, num_blocks: usize) -> [usize; 5] {
        let lengths = [
            self.quants * num_blocks,
            self.high * num_blocks,
            self.scales * num_blocks,
            self.supers * num_blocks.div_ceil(8),
        ];
        let mut offsets = [0; 5];
        for (i, length) in lengths.into_iter().enumerate() {
            offsets[i + 1] = (offsets[i] + length).next_multiple_of(ALIGNMENT);
        }
        offsets
    }
}

/// Planes of a whole number of rows of `num_cols` elements.
pub(super) fn pack(format: Format, num_cols: usize, bytes: &[u8]) -> Vec<u8> {
    let row_bytes = format.row_bytes(num_cols);
    let per_row = num_cols / BLOCK;
    let num_blocks = bytes.len() / row_bytes.max(1) * per_row;
    let sizes = Sizes::of(format);
    let [quants, high, scales, supers, total] = sizes.offsets(num_blocks);
    let mut planes = vec![0; total];
    let mut put = |plane: usize, size: usize, index: usize, part: &[u8]| {
        planes[plane + index * size..][..size].copy_from_slice(&part[..size]);
    };
    for (row, bytes) in bytes.chunks_exact(row_bytes.max(1)).enumerate() {
        for column in 0..per_row {
            let raw = block::read(format, bytes, column);
            let index = row * per_row + column;
            put(quants, sizes.quants, index, &low_bits(format, &raw));
            put(high, sizes.high, index, &high_bits(&raw, sizes.high));
            if sizes.supers == 0 {
                put(scales, sizes.scales, index, &[raw.d[0], raw.d[1], raw.m[0], raw.m[1]]);
            } else {
                put(scales, sizes.scales, index, &raw.sub);
                put(supers, sizes.supers, index / 8, &[raw.d[0], raw.d[1], raw.m[0], raw.m[1]]);
            }
        }
    }
    planes
}

/// The low nibbles, or whole 8-bit quants.
fn low_bits(format: Format, raw: &RawBlock) -> [u8; 32] {
    let mut bytes = [0; 32];
    let words = if format == Format::Q8_0 {
        raw.quants
    } else {
        const NIBBLES: u32 = 0x0f0f_0f0f;
        let nibbles = |s: usize| raw.quants[s] & NIBBLES;
        std::array::from_fn(|s| if s < 4 { nibbles(s) | nibbles(s + 4) << 4 } else { 0 })
    };
    for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}

/// The bits above the nibbles: one a quant in 4 bytes, two in 8 bytes.
fn high_bits(raw: &RawBlock, size: usize) -> [u8; 8] {
    let high = |s: usize, mask: u32| (raw.quants[s] >> 4) & mask;
    let words: [u32; 2] = match size {
        4 => [(0..8).fold(0, |word, s| word | high(s, 0x0101_0101) << s), 0],
        8 => {
            std::array::from_fn(|half| (0..4).fold(0, |w, s| w | high(4 * half + s, 0x0303_0303) << (2 * s)))
        }
        _ => [0; 2],
    };
    let mut bytes = [0; 8];
    for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}
