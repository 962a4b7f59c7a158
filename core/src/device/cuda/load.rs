//! Weights on the GPU; those that several entry points use are loaded once.

use std::collections::HashMap;
use std::sync::Arc;

use half::{bf16, f16};
use metrale_graph::resolve::{Expr, ResolvedWeight};
use metrale_kernels::KernelError;
use metrale_kernels::cpu::Format;
use metrale_kernels::cuda::{Buffer, Cuda, Weight};

use crate::device::load::{Checkpoint, Stored, dimensions};
use crate::device::{LoadError, Plans};
use crate::lower::plan::{ElementType, Vector};

/// Loads the weights of one model.
pub(super) struct WeightLoader<'a> {
    cuda: &'a Cuda,
    checkpoint: &'a Checkpoint<'a>,
    activations: ElementType,
    loaded: HashMap<String, Arc<Weight>>,
}

/// Device memory that the matrices of all plans take.
#[must_use]
pub fn weight_bytes(plans: &Plans) -> u64 {
    let mut counted = HashMap::new();
    for weight in plans.iter().flat_map(|plan| &plan.matrices) {
        let stored: u64 = weight.expr.tensors().iter().map(|t| t.num_bytes).sum();
        let elements = weight.shape.iter().product::<usize>() as u64;
        // Dummies are bf16.
        counted.insert(key(weight), if stored == 0 { 2 * elements } else { stored });
    }
    counted.values().sum()
}

fn key(weight: &ResolvedWeight) -> String {
    format!("{:?}", weight.expr)
}

impl<'a> WeightLoader<'a> {
    pub(super) fn new(cuda: &'a Cuda, checkpoint: &'a Checkpoint<'a>, activations: ElementType) -> Self {
        Self { cuda, checkpoint, activations, loaded: HashMap::new() }
    }

    /// A matrix; more than two axes are folded into the rows. With bf16 activations float weights are bf16, too.
    pub(super) fn matrix(&mut self, weight: &ResolvedWeight) -> Result<Arc<Weight>, LoadError> {
        let key = key(weight);
        if let Some(known) = self.loaded.get(&key) {
            return Ok(Arc::clone(known));
        }
        let made = if weight.expr.tensors().is_empty() && self.activations == ElementType::BF16 {
            self.dummy(weight)
        } else {
            self.load(weight)?
        };
        let made = made.map_err(|source| LoadError::Kernel { name: weight.name.clone(), source })?;
        let made = Arc::new(made);
        self.loaded.insert(key, Arc::clone(&made));
        Ok(made)
    }

    fn load(&self, weight: &ResolvedWeight) -> Result<Result<Weight, KernelError>, LoadError> {
        let (rows, cols) = dimensions(weight);
        let new = |format, bytes: &[u8]| Weight::new(self.cuda, format, rows, cols, bytes);
        let Some((format, stored)) = self.checkpoint.stored(weight)? else {
            let values = self.checkpoint.values(&weight.expr)?;
            return Ok(match self.activations {
                ElementType::F32 => new(Format::F32, &le_bytes(&values, f32::to_le_bytes)),
                ElementType::BF16 => new(Format::BF16, &bf16_bytes(&values)),
            });
        };
        let bytes = match &stored {
            Stored::Tensor(bytes) => bytes.as_ref(),
            Stored::Gathered(bytes) => bytes,
        };
        let narrow = self.activations == ElementType::BF16;
        Ok(match format {
            Format::F32 if narrow => {
                let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                new(Format::BF16, &bf16_bytes(&values))
            }
            Format::F16 if narrow => {
                let values: Vec<f32> =
                    bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect();
                new(Format::BF16, &bf16_bytes(&values))
            }
            format => new(format, bytes),
        })
    }

    /// Random numbers made on the device, of the size that [`Expr::Dummy`] describes.
    fn dummy(&self, weight: &ResolvedWeight) -> Result<Weight, KernelError> {
        let (rows, cols) = dimensions(weight);
        let seed = self.loaded.len() as u32 + 1;
        Weight::dummy(self.cuda, rows, cols, Expr::dummy_scale(cols), 2 * seed)
    }

    /// A vector in f32.
    pub(super) fn vector(&self, vector: &Vector) -> Result<Vec<f32>, LoadError> {
        self.checkpoint.vector(vector)
    }

    pub(super) fn upload(&self, values: &[f32]) -> Result<Buffer<f32>, KernelError> {
        Buffer::from_slice(self.cuda, values)
    }
}

fn le_bytes<const N: usize>(values: &[f32], bytes: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| bytes(v)).collect()
}

fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    le_bytes(values, |v| bf16::from_f32(v).to_le_bytes())
}
