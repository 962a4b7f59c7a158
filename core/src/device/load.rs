//! Weights out of the checkpoint, for every device.
//!
//! What only moves rows about keeps its stored format, quantised blocks included. Anything else is computed in f32.

use std::collections::HashMap;

use metrale_graph::checkpoint::{CheckpointError, Dtype, TensorInfo, check_finite};
use metrale_graph::resolve::{Expr, ResolvedWeight, RowRef};
use metrale_kernels::KernelError;
use metrale_kernels::cpu::Format;

use crate::lower::plan::{Combine, Vector};
use crate::weights::{ModelSource, TensorBytes, WeightsError};

/// A weight that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Stored values are unusable.
    #[error("error[P0405]: {0}")]
    Checkpoint(#[from] CheckpointError),
    /// The kernels refuse what a launch needs.
    #[error("error[P0502]: {0}")]
    Workspace(#[from] KernelError),
    /// The kernels refuse the shape.
    #[error("error[P0406]: weight `{name}`: {source}")]
    Kernel {
        /// Canonical name.
        name: String,
        /// Why.
        source: KernelError,
    },
}

/// Where weights come from: a checkpoint, or nothing for dummies.
pub struct Checkpoint<'a> {
    source: Option<&'a ModelSource>,
    on_bytes: &'a dyn Fn(u64),
}

impl std::fmt::Debug for Checkpoint<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checkpoint({:?})", self.source.map(ModelSource::path))
    }
}

/// Rows of a matrix in their stored format.
pub(super) enum Stored {
    /// A whole tensor.
    Tensor(TensorBytes),
    /// Rows of several tensors.
    Gathered(Vec<u8>),
}

/// Rows and columns of a matrix; more than two axes are folded into the rows.
pub(super) fn dimensions(weight: &ResolvedWeight) -> (usize, usize) {
    let cols = weight.shape.last().copied().unwrap_or(0);
    (weight.shape.iter().product::<usize>() / cols.max(1), cols)
}

impl<'a> Checkpoint<'a> {
    /// Reads from `source`, or makes dummy weights without one. `on_bytes` hears of stored bytes as they are read.
    #[must_use]
    pub fn new(source: Option<&'a ModelSource>, on_bytes: &'a dyn Fn(u64)) -> Self {
        Self { source, on_bytes }
    }

    /// Whether weights are dummies.
    pub(super) fn is_dummy(&self) -> bool {
        self.source.is_none()
    }

    /// The matrix in its stored format, if its rows are stored as they are.
    pub(super) fn stored(&self, weight: &ResolvedWeight) -> Result<Option<(Format, Stored)>, LoadError> {
        let (Some(source), Some(format)) = (self.source, weight.expr.dtype().and_then(kernel_format)) else {
            return Ok(None);
        };
        let Some(map) = weight.expr.rows() else { return Ok(None) };
        let (rows, cols) = dimensions(weight);
        let tensors = weight.expr.tensors();
        self.check(source, &tensors)?;
        if let ([tensor], true) = (tensors.as_slice(), is_identity(&map)) {
            return Ok(Some((format, Stored::Tensor(source.tensor(tensor)?))));
        }
        let row_bytes = format.row_bytes(cols);
        let stored = tensors.iter().map(|t| source.tensor_bytes(t)).collect::<Result<Vec<_>, _>>()?;
        let mut gathered = Vec::with_capacity(rows * row_bytes);
        for RowRef { tensor, row } in map {
            gathered.extend_from_slice(&stored[tensor][row * row_bytes..(row + 1) * row_bytes]);
        }
        Ok(Some((format, Stored::Gathered(gathered))))
    }

    /// A vector in f32.
    pub(super) fn vector(&self, vector: &Vector) -> Result<Vec<f32>, LoadError> {
        match vector {
            Vector::Constant(values) => Ok(values.clone()),
            Vector::Weight(weight) => self.values(&weight.expr),
            Vector::Combined(f, a, b) => {
                let (a, b) = (self.vector(a)?, self.vector(b)?);
                let combine = |(a, b): (&f32, &f32)| match f {
                    Combine::Add => a + b,
                    Combine::Mul => a * b,
                    Combine::Div => a / b,
                };
                Ok(a.iter().zip(&b).map(combine).collect())
            }
        }
    }

    /// All elements in f32.
    pub(super) fn values(&self, expr: &Expr) -> Result<Vec<f32>, LoadError> {
        let tensors = expr.tensors();
        let mut stored = HashMap::new();
        if let Some(source) = self.source {
            self.check(source, &tensors)?;
            for tensor in tensors {
                stored.insert(tensor.name.clone(), source.tensor_bytes(tensor)?);
            }
        }
        Ok(expr.to_f32(&|t: &TensorInfo| stored.get(&t.name).copied().unwrap_or(&[]))?)
    }

    fn check(&self, source: &ModelSource, tensors: &[&TensorInfo]) -> Result<(), LoadError> {
        for tensor in tensors {
            check_finite(tensor, source.tensor_bytes(tensor)?)?;
            (self.on_bytes)(tensor.num_bytes);
        }
        Ok(())
    }
}

fn is_identity(map: &[RowRef]) -> bool {
    map.iter().enumerate().all(|(i, r)| r.row == i)
}

fn kernel_format(dtype: Dtype) -> Option<Format> {
    Some(match dtype {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::BF16,
        Dtype::Q4_0 => Format::Q4_0,
        Dtype::Q4_1 => Format::Q4_1,
        Dtype::Q5_0 => Format::Q5_0,
        Dtype::Q5_1 => Format::Q5_1,
        Dtype::Q8_0 => Format::Q8_0,
        Dtype::Q4K => Format::Q4_K,
        Dtype::Q5K => Format::Q5_K,
        Dtype::Q6K => Format::Q6_K,
        _ => return None,
    })
}
