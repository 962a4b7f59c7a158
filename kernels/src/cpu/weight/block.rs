//! Decoding of checkpoint blocks: 32 elements as unsigned integers with their scales.
//!
//! Every quantised format is a sequence of 32-element blocks once the 256-element super-blocks are cut up.

use super::format::Format;

/// Elements in a block.
pub(crate) const BLOCK: usize = 32;

/// Words of four quants in a block.
const WORDS: usize = BLOCK / 4;
/// The low nibble of each byte of a word.
pub(super) const NIBBLES: u32 = 0x0f0f_0f0f;

/// The integers and raw scales of 32 elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawBlock {
    /// Unsigned quants, element 4s + j in byte j of word s; for `Q8_0` the bits of the signed ones.
    pub(crate) quants: [u32; WORDS],
    /// f16 bits of the (super-)block's scale.
    pub(crate) d: [u8; 2],
    /// f16 bits of the (super-)block's min, zero where the format has none.
    pub(crate) m: [u8; 2],
    /// Integer scales of a super-block's part: (sc, m) of 32 elements, or the two scales of 16 elements each.
    pub(crate) sub: [u8; 2],
}

/// Reads 32-element block `index` of a row.
#[inline(always)]
pub(crate) fn read(format: Format, row: &[u8], index: usize) -> RawBlock {
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
            quants: with_fifth_bits(nibbles(&block[6..]), word(block, 2)),
            d: pair(block, 0),
            m: [0; 2],
            sub: [0; 2],
        },
        Format::Q5_1 => RawBlock {
            quants: with_fifth_bits(nibbles(&block[8..]), word(block, 4)),
            d: pair(block, 0),
            m: pair(block, 2),
            sub: [0; 2],
        },
        Format::Q8_0 => {
            RawBlock { quants: words(|s| word(block, 2 + 4 * s)), d: pair(block, 0), m: [0; 2], sub: [0; 2] }
        }
        Format::Q4_K => RawBlock {
            quants: run_nibbles(&block[16..], part),
            d: pair(block, 0),
            m: pair(block, 2),
            sub: six_bit_scales(&block[4..16], part),
        },
        Format::Q5_K => {
            let low = run_nibbles(&block[48..], part);
            RawBlock {
                quants: words(|s| low[s] | ((word(block, 16 + 4 * s) >> part) & 0x0101_0101) << 4),
                d: pair(block, 0),
                m: pair(block, 2),
                sub: six_bit_scales(&block[4..16], part),
            }
        }
        Format::Q6_K => RawBlock {
            quants: six_bit_quants(block, part),
            d: pair(block, 208),
            m: [0; 2],
            sub: pair(block, 192 + 2 * part),
        },
        // Float formats are never packed.
        Format::F32 | Format::BF16 | Format::F16 => {
            RawBlock { quants: [0; WORDS], d: [0; 2], m: [0; 2], sub: [0; 2] }
        }
    }
}

#[inline(always)]
fn pair(bytes: &[u8], at: usize) -> [u8; 2] {
    [bytes[at], bytes[at + 1]]
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// `f` of each word: a loop, because `array::from_fn` is not inlined here.
#[inline(always)]
fn words(f: impl Fn(usize) -> u32) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (s, word) in words.iter_mut().enumerate() {
        *word = f(s);
    }
    words
}

/// 16 bytes: elements 0..16 are the low nibbles, 16..32 the high ones.
#[inline(always)]
fn nibbles(qs: &[u8]) -> [u32; WORDS] {
    let qs = &qs[..16];
    words(|s| (word(qs, 4 * (s % 4)) >> (4 * (s / 4))) & NIBBLES)
}

/// Runs of 32 bytes: run r holds part 2r in the low nibbles and part 2r + 1 in the high ones.
#[inline(always)]
fn run_nibbles(qs: &[u8], part: usize) -> [u32; WORDS] {
    let run = &qs[part / 2 * 32..][..32];
    words(|s| (word(run, 4 * s) >> (4 * (part % 2))) & NIBBLES)
}

/// Bit i of `high` is the fifth bit of element i.
#[inline(always)]
fn with_fifth_bits(low: [u32; WORDS], high: u32) -> [u32; WORDS] {
    words(|s| {
        let bits = high >> (4 * s);
        low[s] | (bits & 1) << 4 | (bits & 2) << 11 | (bits & 4) << 18 | (bits & 8) << 25
    })
}

/// The 6-bit (scale, min) of part `s` of a `Q4_K` or `Q5_K` super-block.
#[inline(always)]
fn six_bit_scales(packed: &[u8], s: usize) -> [u8; 2] {
    if s < 4 {
        [packed[s] & 63, packed[s + 4] & 63]
    } else {
        [(packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4, (packed[s + 4] >> 4) | (packed[s] >> 6) << 4]
    }
}

/// Part `part` of a `Q6_K` super-block, without the offset: halves of four parts; 64 bytes of low nibbles and 32 bytes
/// of upper bit pairs per half.
#[inline(always)]
fn six_bit_quants(block: &[u8], part: usize) -> [u32; WORDS] {
    let (half, lane) = (part / 4, part % 4);
    let low = &block[64 * half + 32 * (lane % 2)..][..32];
    let high = &block[128 + 32 * half..][..32];
    words(|s| {
        let nibbles = (word(low, 4 * s) >> (4 * (lane / 2))) & NIBBLES;
        nibbles | ((word(high, 4 * s) >> (2 * lane)) & 0x0303_0303) << 4
    })
}
