//! Checkpoints of random numbers, the same on every machine and in every run.

use std::collections::BTreeMap;

use metrale_graph::Attrs;
use metrale_graph::checkpoint::write::{Tensor, safetensors};
use metrale_graph::checkpoint::{CheckpointError, Dtype};
use metrale_reference::{Checkpoint, ModelError};

/// A test model is small; more elements than this are a listing of a real one.
const MAX_ELEMENTS: usize = 1 << 26;

/// A checkpoint that is not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RandomError {
    #[error("{elements} elements; a test model has at most {MAX_ELEMENTS}: make its dimensions smaller")]
    TooLarge { elements: usize },
    #[error(transparent)]
    Write(#[from] CheckpointError),
    #[error(transparent)]
    Read(#[from] ModelError),
}

/// An f32 checkpoint with these tensors.
pub(crate) fn checkpoint(
    attrs: &Attrs,
    shapes: &BTreeMap<String, Vec<usize>>,
) -> Result<Checkpoint, RandomError> {
    let sizes = shapes.values().map(|s| s.iter().fold(1, |n: usize, d| n.saturating_mul(*d)));
    let elements = sizes.fold(0, usize::saturating_add);
    if elements > MAX_ELEMENTS {
        return Err(RandomError::TooLarge { elements });
    }
    let bytes: Vec<_> = shapes.iter().map(|(name, shape)| values(name, shape)).collect();
    let tensors: Vec<_> = shapes
        .iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| Tensor { name, dtype: Dtype::F32, shape, bytes })
        .collect();
    Ok(Checkpoint::from_safetensors(attrs.clone(), safetensors(&tensors, &[])?)?)
}

/// Matrices keep the scale of their input; vectors (norms, biases, decays) lie around one.
fn values(name: &str, shape: &[usize]) -> Vec<u8> {
    let elements: usize = shape.iter().product();
    let (center, spread) = match shape {
        [.., _, fan_in] => (0.0, (3.0 / (*fan_in).max(1) as f32).sqrt()),
        _ => (1.0, 0.5),
    };
    let mut random =
        SplitMix(name.bytes().fold(elements as u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)));
    let unit = |bits: u64| (bits >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
    (0..elements).flat_map(|_| (center + spread * unit(random.next())).to_le_bytes()).collect()
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
