//! The cheap look at stored weights that turns a damaged file into an error with a tensor's name.

use half::{bf16, f16};

use super::{CheckpointError, Dtype, TensorInfo};

/// Bytes that are tested before looking for the exact place: a whole number of every element type.
const CHUNK: usize = 4096;

/// Fails on the first NaN or infinity: in the elements of floating-point types, in the f16 scales of GGUF blocks.
/// Integer and packed types always pass.
pub fn check_finite(tensor: &TensorInfo, bytes: &[u8]) -> Result<(), CheckpointError> {
    let found = match tensor.dtype {
        Dtype::F32 => scan::<4>(bytes, |b| !f32::from_le_bytes(b).is_finite()),
        Dtype::F64 => scan::<8>(bytes, |b| !f64::from_le_bytes(b).is_finite()),
        // All exponent bits set.
        Dtype::F16 => scan::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        Dtype::BF16 => scan::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        Dtype::F8E4M3 => scan::<1>(bytes, |[b]| b & 0x7f == 0x7f),
        Dtype::F8E5M2 => scan::<1>(bytes, |[b]| b & 0x7c == 0x7c),
        dtype => return check_scales(tensor, dtype, bytes),
    };
    found.map_or(Ok(()), |index| {
        let at = index * tensor.dtype.block_bytes();
        Err(not_finite(tensor, index, kind(tensor.dtype, &bytes[at..])))
    })
}

/// Index of the first element that `bad` accepts. Whole chunks are tested without an early exit, so that the loop
/// vectorises.
fn scan<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool + Copy) -> Option<usize> {
    for (chunk_index, chunk) in bytes.chunks(CHUNK).enumerate() {
        let (elements, _) = chunk.as_chunks::<N>();
        if elements.iter().fold(false, |any, &e| any | bad(e)) {
            return elements.iter().position(|&e| bad(e)).map(|i| chunk_index * (CHUNK / N) + i);
        }
    }
    None
}

/// Byte offsets of the f16 scales inside a block.
fn scale_offsets(dtype: Dtype) -> &'static [usize] {
    match dtype {
        Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 | Dtype::IQ4NL => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q2K => &[80, 82],
        Dtype::Q3K => &[108],
        Dtype::Q6K => &[208],
        _ => &[],
    }
}

fn check_scales(tensor: &TensorInfo, dtype: Dtype, bytes: &[u8]) -> Result<(), CheckpointError> {
    let offsets = scale_offsets(dtype);
    if offsets.is_empty() {
        return Ok(());
    }
    for (i, block) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
        for &at in offsets {
            let value = f16::from_le_bytes([block[at], block[at + 1]]);
            if !value.is_finite() {
                return Err(not_finite(tensor, i * dtype.block_size(), value_kind(value.to_f64())));
            }
        }
    }
    Ok(())
}

fn kind(dtype: Dtype, bytes: &[u8]) -> &'static str {
    let value = match (dtype, bytes) {
        (Dtype::F32, &[a, b, c, d, ..]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (Dtype::F64, &[a, b, c, d, e, f, g, h, ..]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        (Dtype::F16, &[a, b, ..]) => f16::from_le_bytes([a, b]).to_f64(),
        (Dtype::BF16, &[a, b, ..]) => bf16::from_le_bytes([a, b]).to_f64(),
        // E5M2 is the upper byte of f16.
        (Dtype::F8E5M2, &[a, ..]) => f16::from_le_bytes([0, a]).to_f64(),
        _ => f64::NAN,
    };
    value_kind(value)
}

fn value_kind(value: f64) -> &'static str {
    if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "inf"
    } else {
        "-inf"
    }
}

fn not_finite(tensor: &TensorInfo, index: usize, value: &'static str) -> CheckpointError {
    CheckpointError::NotFinite { tensor: tensor.name.clone(), index, value }
}
