//! Stored bytes to f32: what every element type *means*. Scalar, safe, the reference that kernels are checked against.
//!
//! Block types are bit-equal to the reference implementation of the format: scales are widened to f32 first, products
//! are formed in the order that each function shows, nothing is fused.

mod k_quants;
mod legacy;

use half::{bf16, f16};

use super::{CheckpointError, Dtype};

/// Converts `bytes` of type `dtype` into exactly `out.len()` values.
///
/// Fails if the bytes are not that many elements, and for types without a conversion (integers, packed FP4/FP6, the
/// codebook types).
pub fn dequantize(dtype: Dtype, bytes: &[u8], out: &mut [f32]) -> Result<(), CheckpointError> {
    if dtype.row_bytes(out.len()) != Some(bytes.len()) {
        return Err(CheckpointError::BlockCount { dtype, bytes: bytes.len(), elements: out.len() });
    }
    match dtype {
        Dtype::F32 => each(bytes, out, |b, [x]| *x = f32::from_le_bytes(*b)),
        Dtype::F16 => each(bytes, out, |b, [x]| *x = f16::from_le_bytes(*b).to_f32()),
        Dtype::BF16 => each(bytes, out, |b, [x]| *x = bf16::from_le_bytes(*b).to_f32()),
        Dtype::F64 => each(bytes, out, |b, [x]| *x = f64::from_le_bytes(*b) as f32),
        Dtype::F8E4M3 => each(bytes, out, |&[b], [x]| *x = f8_e4m3_to_f32(b)),
        Dtype::F8E5M2 => each(bytes, out, |&[b], [x]| *x = f8_e5m2_to_f32(b)),
        Dtype::Q4_0 => each(bytes, out, legacy::q4_0),
        Dtype::Q4_1 => each(bytes, out, legacy::q4_1),
        Dtype::Q5_0 => each(bytes, out, legacy::q5_0),
        Dtype::Q5_1 => each(bytes, out, legacy::q5_1),
        Dtype::Q8_0 => each(bytes, out, legacy::q8_0),
        Dtype::Q2K => each(bytes, out, k_quants::q2_k),
        Dtype::Q3K => each(bytes, out, k_quants::q3_k),
        Dtype::Q4K => each(bytes, out, k_quants::q4_k),
        Dtype::Q5K => each(bytes, out, k_quants::q5_k),
        Dtype::Q6K => each(bytes, out, k_quants::q6_k),
        _ => return Err(CheckpointError::NotConvertible { dtype }),
    }
    Ok(())
}

/// True if [`dequantize`] can read the type.
#[must_use]
pub fn is_convertible(dtype: Dtype) -> bool {
    dequantize(dtype, &[], &mut []).is_ok()
}

/// Applies `convert` to every block of `B` bytes and `N` values.
fn each<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    convert: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (blocks, _) = bytes.as_chunks::<B>();
    let (values, _) = out.as_chunks_mut::<N>();
    for (block, values) in blocks.iter().zip(values) {
        convert(block, values);
    }
}

/// The f16 at byte `at` of a block.
fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// FP8 E4M3 ("fn" variant): bias 7, no infinities, NaN only where all exponent and mantissa bits are set.
#[must_use]
pub fn f8_e4m3_to_f32(bits: u8) -> f32 {
    let (exponent, mantissa) = ((bits >> 3) & 15, f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(i32::from(exponent) - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// FP8 E5M2: the upper byte of an f16.
#[must_use]
pub fn f8_e5m2_to_f32(bits: u8) -> f32 {
    f16::from_le_bytes([0, bits]).to_f32()
}
