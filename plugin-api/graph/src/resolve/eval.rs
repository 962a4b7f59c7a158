//! Computes a weight expression in f32. For what only moves rows about, [`Expr::rows`] does without.

use super::expr::{Expr, permuted_indices};
use crate::checkpoint::{CheckpointError, TensorInfo, dequant};

impl Expr {
    /// Elements in row-major order. `bytes_of` gives the stored bytes of a tensor; a [`Expr::Dummy`] has none and
    /// gives small numbers that depend on its name and place only.
    ///
    /// # Errors
    /// A stored type that cannot be converted.
    pub fn to_f32<'b>(
        &self,
        bytes_of: &dyn Fn(&TensorInfo) -> &'b [u8],
    ) -> Result<Vec<f32>, CheckpointError> {
        Ok(match self {
            Self::Tensor(t) => {
                let mut out = vec![0.0; t.num_elements()];
                dequant::dequantize(t.dtype, bytes_of(t), &mut out)?;
                out
            }
            Self::Dummy { name, shape } => dummy(name, shape),
            Self::Stack { parts, axis } => {
                let shapes: Vec<_> = parts.iter().map(Self::shape).collect();
                let data: Vec<_> = parts.iter().map(|p| p.to_f32(bytes_of)).collect::<Result<_, _>>()?;
                let outer: usize = shapes[0][..*axis].iter().product();
                let mut out = Vec::with_capacity(data.iter().map(Vec::len).sum());
                for o in 0..outer {
                    for part in &data {
                        let chunk = part.len() / outer;
                        out.extend_from_slice(&part[o * chunk..(o + 1) * chunk]);
                    }
                }
                out
            }
            Self::Slice { of, axis, start, end } => {
                let shape = of.shape();
                let data = of.to_f32(bytes_of)?;
                let inner: usize = shape[*axis + 1..].iter().product();
                let step = shape[*axis] * inner;
                data.chunks(step).flat_map(|c| c[start * inner..end * inner].iter().copied()).collect()
            }
            Self::Reshape { of, .. } => of.to_f32(bytes_of)?,
            Self::Permute { of, axes } => {
                let data = of.to_f32(bytes_of)?;
                permuted_indices(&of.shape(), axes).into_iter().map(|i| data[i]).collect()
            }
            Self::Affine { of, factor, shift } => {
                of.to_f32(bytes_of)?.iter().map(|&w| (f64::from(w) * factor + shift) as f32).collect()
            }
            Self::NegExp(of) => of.to_f32(bytes_of)?.iter().map(|w| -w.exp()).collect(),
            Self::LogNeg(of) => of.to_f32(bytes_of)?.iter().map(|w| (-w).ln()).collect(),
        })
    }

    /// Largest absolute value of a dummy matrix with rows of so many elements.
    #[must_use]
    pub fn dummy_scale(row_len: usize) -> f32 {
        1.7 / (row_len as f32).sqrt()
    }
}

/// Weights for a model without a checkpoint: repeatable, zero-mean, scaled so that activations keep their size; vectors are
/// near 1 so that norms pass signals on.
fn dummy(name: &str, shape: &[usize]) -> Vec<f32> {
    let seed = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let is_vector = shape.len() <= 1;
    let scale = if is_vector { 0.05 } else { Expr::dummy_scale(*shape.last().unwrap_or(&1)) };
    let center = if is_vector { 1.0 } else { 0.0 };
    let count = shape.iter().product::<usize>() as u64;
    (0..count)
        .map(|i| center + scale * (2.0 * unit(seed ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) - 1.0))
        .collect()
}

/// A number in [0, 1) from a counter (splitmix64).
fn unit(mut z: u64) -> f32 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
}
