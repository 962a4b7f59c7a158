//! Super-blocks of 256 with quantised scales.

use super::scale;

/// `16 bytes of 4-bit scale and minimum | 64 bytes of 2 bits | d | dmin`: `d * sc * q - dmin * m`, 16 sub-blocks.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (scale(block, 80), scale(block, 82));
    for (i, x) in out.iter_mut().enumerate() {
        let scales = block[i / 16];
        let (d, m) = (d * f32::from(scales & 15), dmin * f32::from(scales >> 4));
        *x = d * f32::from(two_bits(&block[16..80], i)) - m;
    }
}

/// `32 bytes of third bits | 64 bytes of 2 bits | 12 bytes of 6-bit scales | d`: `d * (sc - 32) * (q - 4)`.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = scale(block, 108);
    let scales = &block[96..108];
    for (i, x) in out.iter_mut().enumerate() {
        let s = i / 16;
        let low = if s < 8 { scales[s] & 15 } else { scales[s - 8] >> 4 };
        let high = scales[8 + s % 4] >> (2 * (s / 4)) & 3;
        let d = d * (f32::from(low | high << 4) - 32.0);
        let third_bit = block[i % 32] >> (i / 32) & 1;
        *x = d * (f32::from(two_bits(&block[32..96], i) | third_bit << 2) - 4.0);
    }
}

/// Element `i` of 64 bytes that hold two halves of 128, each as four runs of 32 in bits 0-1, 2-3, 4-5, 6-7.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3
}

/// `d | dmin | 12 bytes of 6-bit scales and minima | 128 bytes of nibbles`: `d * sc * q - dmin * m`, 8 sub-blocks.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    for (s, sub_block) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, m) = scale_and_minimum(&block[4..16], s);
        let (d, m) = (d * sc, dmin * m);
        for (i, x) in sub_block.iter_mut().enumerate() {
            *x = d * f32::from(nibble(&block[16..], s, i)) - m;
        }
    }
}

/// As [`q4_k`] with 32 bytes of fifth bits in front of the nibbles: bit `s` of byte `i` belongs to sub-block `s`.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    for (s, sub_block) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, m) = scale_and_minimum(&block[4..16], s);
        let (d, m) = (d * sc, dmin * m);
        for (i, x) in sub_block.iter_mut().enumerate() {
            let fifth_bit = block[16 + i] >> s & 1;
            *x = d * f32::from(nibble(&block[48..], s, i) | fifth_bit << 4) - m;
        }
    }
}

/// Runs of 32 bytes hold two sub-blocks each: the even one in the low nibbles, the odd one in the high nibbles.
fn nibble(bytes: &[u8], s: usize, i: usize) -> u8 {
    bytes[s / 2 * 32 + i] >> (4 * (s % 2)) & 15
}

/// The 6-bit scale and minimum of sub-block `s`: the first four lie in the low bits of bytes 0-7, the others are split
/// between bytes 8-11 and the two bits that are left there.
fn scale_and_minimum(packed: &[u8], s: usize) -> (f32, f32) {
    let (sc, m) = if s < 4 {
        (packed[s] & 63, packed[s + 4] & 63)
    } else {
        (packed[s + 4] & 15 | packed[s - 4] >> 6 << 4, packed[s + 4] >> 4 | packed[s] >> 6 << 4)
    };
    (f32::from(sc), f32::from(m))
}

/// `128 bytes of low nibbles | 64 bytes of 2 high bits | 16 signed scales | d`: `d * sc * (q - 32)`, 16 sub-blocks.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = scale(block, 208);
    for (i, x) in out.iter_mut().enumerate() {
        let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
        let low = block[64 * half + 32 * (run % 2) + l] >> (4 * (run / 2)) & 15;
        let high = block[128 + 32 * half + l] >> (2 * run) & 3;
        let d = d * f32::from(block[192 + i / 16].cast_signed());
        *x = d * (f32::from(low | high << 4) - 32.0);
    }
}
