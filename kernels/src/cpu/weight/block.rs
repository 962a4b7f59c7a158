//! Decoding of checkpoint blocks: 32 elements as unsigned integers with their scales.
//!
//! Every quantised format is a sequence of 32-element blocks once the 256-element super-blocks are cut up.

use super::format::Format;

/// Elements in a block.
pub(crate) const BLOCK: usize = 32;

/// The integers and raw scales of 32 elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawBlock {
    /// Unsigned quants; for `Q8_0` the bits of the signed ones.
    pub(super) quants: [u8; BLOCK],
    /// f16 bits of the (super-)block's scale.
    pub(super) d: [u8; 2],
    /// f16 bits of the (super-)block's min, zero where the format has none.
    pub(super) m: [u8; 2],
    /// Integer scales of a super-block's part: (sc, m) of 32 elements, or the two scales of 16 elements each.
    pub(super) sub: [u8; 2],
}

/// Reads 32-element block `index` of a row.
pub(super) fn read(format: Format, row: &[u8], index: usize) -> RawBlock {
    let per_super = format.block_len() / BLOCK;
    let bytes = format.block_bytes();
    let block = &row[index / per_super * bytes..][..bytes];
    let part = index % per_super;
    match format {
        Format::Q4_0 => RawBlock { quants: nibbles(&block[2..]), d: pair(block, 0), m: [0; 2], sub: [0; 2] },
        Format::Q4_1 => {
            RawBlock { quants: nibbles(&block[4..]), d: pair(block, 0), m: pair(block, 2), sub: [0; 2] }
        }
        Format::Q5_0 => RawBlock {
            quants: with_fifth_bit(nibbles(&block[6..]), &block[2..6]),
            d: pair(block, 0),
            m: [0; 2],
            sub: [0; 2],
        },
        Format::Q5_1 => RawBlock {
            quants: with_fifth_bit(nibbles(&block[8..]), &block[4..8]),
            d: pair(block, 0),
            m: pair(block, 2),
            sub: [0; 2],
        },
        Format::Q8_0 => RawBlock {
            quants: std::array::from_fn(|i| block[2 + i]),
            d: pair(block, 0),
            m: [0; 2],
            sub: [0; 2],
        },
        Format::Q4_K => RawBlock {
            quants: run_nibbles(&block[16..], part),
            d: pair(block, 0),
            m: pair(block, 2),
            sub: six_bit_scales(&block[4..16], part),
        },
        Format::Q5_K => {
            let low = run_nibbles(&block[48..], part);
            RawBlock {
                quants: std::array::from_fn(|i| low[i] | ((block[16 + i] >> part) & 1) << 4),
                d: pair(block, 0),
                m: pair(block, 2),
                sub: six_bit_scales(&block[4..16], part),
            }
        }
        Format::Q6_K => RawBlock {
            quants: std::array::from_fn(|i| six_bit_quant(block, part * BLOCK + i)),
            d: pair(block, 208),
            m: [0; 2],
            sub: pair(block, 192 + 2 * part),
        },
        // Float formats are never packed.
        Format::F32 | Format::BF16 | Format::F16 => {
            RawBlock { quants: [0; BLOCK], d: [0; 2], m: [0; 2], sub: [0; 2] }
        }
    }
}

fn pair(bytes: &[u8], at: usize) -> [u8; 2] {
    [bytes[at], bytes[at + 1]]
}

/// 16 bytes: elements 0..16 are the low nibbles, 16..32 the high ones.
fn nibbles(qs: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// Runs of 32 bytes: run r holds part 2r in the low nibbles and part 2r + 1 in the high ones.
fn run_nibbles(qs: &[u8], part: usize) -> [u8; BLOCK] {
    let run = &qs[part / 2 * 32..][..32];
    std::array::from_fn(|i| if part.is_multiple_of(2) { run[i] & 15 } else { run[i] >> 4 })
}

fn with_fifth_bit(low: [u8; BLOCK], high: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|i| low[i] | ((high[i / 8] >> (i % 8)) & 1) << 4)
}

/// The 6-bit (scale, min) of part `s` of a `Q4_K` or `Q5_K` super-block.
fn six_bit_scales(packed: &[u8], s: usize) -> [u8; 2] {
    if s < 4 {
        [packed[s] & 63, packed[s + 4] & 63]
    } else {
        [(packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4, (packed[s + 4] >> 4) | (packed[s] >> 6) << 4]
    }
}

/// Element `i` of a `Q6_K` super-block, without its offset.
fn six_bit_quant(block: &[u8], i: usize) -> u8 {
    let (half, position) = (i / 128, i % 128);
    let (lane, l) = (position / 32, position % 32);
    let low = block[64 * half + 32 * (lane % 2) + l] >> (4 * (lane / 2)) & 15;
    let high = block[128 + 32 * half + l] >> (2 * lane) & 3;
    low | high << 4
}
