//! Blocks of 32 with f16 scales. Element `i` below 16 is the low nibble of byte `i`, element `i + 16` the high nibble.

use super::scale;

/// `d | 16 bytes of nibbles`: `d * (q - 8)`.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    nibbles(&block[2..], |i, q| out[i] = d * (f32::from(q) - 8.0));
}

/// `d | m | 16 bytes of nibbles`: `d * q + m`.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    nibbles(&block[4..], |i, q| out[i] = d * f32::from(q) + m);
}

/// `d | 32 fifth bits | 16 bytes of nibbles`: `d * (q - 16)`.
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    let high = fifth_bits(block, 2);
    nibbles(&block[6..], |i, q| out[i] = d * (f32::from(high(i, q)) - 16.0));
}

/// `d | m | 32 fifth bits | 16 bytes of nibbles`: `d * q + m`.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    let high = fifth_bits(block, 4);
    nibbles(&block[8..], |i, q| out[i] = d * f32::from(high(i, q)) + m);
}

/// `d | 32 signed bytes`: `d * q`.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (x, &q) in out.iter_mut().zip(&block[2..]) {
        *x = d * f32::from(q.cast_signed());
    }
}

fn nibbles(bytes: &[u8], mut each: impl FnMut(usize, u8)) {
    for (i, &byte) in bytes.iter().enumerate() {
        each(i, byte & 15);
        each(i + 16, byte >> 4);
    }
}

/// Adds bit `i` of the little-endian u32 at `at` to nibble `i`.
fn fifth_bits(block: &[u8], at: usize) -> impl Fn(usize, u8) -> u8 {
    let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    move |i, q| q | ((bits >> i & 1) as u8) << 4
}
