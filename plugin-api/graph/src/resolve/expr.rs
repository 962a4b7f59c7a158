//! How a weight is made from stored tensors.

use crate::checkpoint::{Dtype, TensorInfo};

/// An expression over stored tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A stored tensor.
    Tensor(TensorInfo),
    /// A tensor of a model without a checkpoint.
    Dummy {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Parts joined along an axis.
    Stack {
        /// The parts.
        parts: Vec<Expr>,
        /// The axis.
        axis: usize,
    },
    /// `start..end` of an axis.
    Slice {
        /// Of what.
        of: Box<Expr>,
        /// The axis.
        axis: usize,
        /// First index.
        start: usize,
        /// Index after the last.
        end: usize,
    },
    /// The same elements under another shape.
    Reshape {
        /// Of what.
        of: Box<Expr>,
        /// The new shape.
        shape: Vec<usize>,
    },
    /// Axes reordered.
    Permute {
        /// Of what.
        of: Box<Expr>,
        /// Axis `i` of the result is axis `axes[i]` of `of`.
        axes: Vec<usize>,
    },
    /// `factor · w + shift`.
    Affine {
        /// Of what.
        of: Box<Expr>,
        /// Multiplier.
        factor: f64,
        /// Summand.
        shift: f64,
    },
    /// `−exp(w)`.
    NegExp(Box<Expr>),
    /// `ln(−w)`.
    LogNeg(Box<Expr>),
}

/// A row of a stored tensor, seen as `[rows, last axis]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRef {
    /// Which of [`Expr::tensors`].
    pub tensor: usize,
    /// Which row of it.
    pub row: usize,
}

impl Expr {
    /// Shape of the result.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Tensor(t) => t.shape.clone(),
            Self::Dummy { shape, .. } | Self::Reshape { shape, .. } => shape.clone(),
            Self::Stack { parts, axis } => {
                let mut shape = parts.first().map(Self::shape).unwrap_or_default();
                if let Some(size) = shape.get_mut(*axis) {
                    *size = parts.iter().map(|p| p.shape()[*axis]).sum();
                }
                shape
            }
            Self::Slice { of, axis, start, end } => {
                let mut shape = of.shape();
                shape[*axis] = end - start;
                shape
            }
            Self::Permute { of, axes } => {
                let shape = of.shape();
                axes.iter().map(|&a| shape[a]).collect()
            }
            Self::Affine { of, .. } | Self::NegExp(of) | Self::LogNeg(of) => of.shape(),
        }
    }

    /// The stored tensors it is made from, each mention once, in order.
    #[must_use]
    pub fn tensors(&self) -> Vec<&TensorInfo> {
        let mut out = Vec::new();
        self.collect_tensors(&mut out);
        out
    }

    fn collect_tensors<'a>(&'a self, out: &mut Vec<&'a TensorInfo>) {
        match self {
            Self::Tensor(t) => out.push(t),
            Self::Dummy { .. } => {}
            Self::Stack { parts, .. } => parts.iter().for_each(|p| p.collect_tensors(out)),
            Self::Slice { of, .. }
            | Self::Reshape { of, .. }
            | Self::Permute { of, .. }
            | Self::Affine { of, .. }
            | Self::NegExp(of)
            | Self::LogNeg(of) => of.collect_tensors(out),
        }
    }

    /// The stored type of all its tensors, if they agree.
    #[must_use]
    pub fn dtype(&self) -> Option<Dtype> {
        let tensors = self.tensors();
        let first = tensors.first()?.dtype;
        tensors.iter().all(|t| t.dtype == first).then_some(first)
    }

    /// The result as whole rows of its tensors, if it only moves rows about: quantised blocks then stay as they are.
    ///
    /// A value with one axis is one row.
    #[must_use]
    pub fn rows(&self) -> Option<Vec<RowRef>> {
        let mut next_tensor = 0;
        self.row_map(&mut next_tensor)
    }

    fn row_map(&self, next_tensor: &mut usize) -> Option<Vec<RowRef>> {
        match self {
            Self::Tensor(t) => {
                let tensor = *next_tensor;
                *next_tensor += 1;
                let rows = num_rows(&t.shape);
                Some((0..rows).map(|row| RowRef { tensor, row }).collect())
            }
            Self::Stack { parts, axis } => {
                let shapes: Vec<_> = parts.iter().map(Self::shape).collect();
                let maps: Vec<_> = parts.iter().map(|p| p.row_map(next_tensor)).collect::<Option<_>>()?;
                let rank = shapes[0].len();
                if *axis + 1 >= rank {
                    return (parts.len() == 1).then(|| maps.into_iter().next()).flatten();
                }
                let outer: usize = shapes[0][..*axis].iter().product();
                let mut out = Vec::with_capacity(maps.iter().map(Vec::len).sum());
                for o in 0..outer {
                    for map in &maps {
                        let chunk = map.len() / outer;
                        out.extend_from_slice(&map[o * chunk..(o + 1) * chunk]);
                    }
                }
                Some(out)
            }
            Self::Slice { of, axis, start, end } => {
                let shape = of.shape();
                let map = of.row_map(next_tensor)?;
                if *axis + 1 == shape.len() {
                    return (*start == 0 && *end == shape[*axis]).then_some(map);
                }
                let inner: usize = shape[*axis + 1..shape.len() - 1].iter().product();
                let outer: usize = shape[..*axis].iter().product();
                let step = shape[*axis] * inner;
                Some(
                    (0..outer)
                        .flat_map(|o| map[o * step + start * inner..o * step + end * inner].iter().copied())
                        .collect(),
                )
            }
            Self::Reshape { of, shape } => {
                let keeps_rows = of.shape().last() == shape.last();
                keeps_rows.then(|| of.row_map(next_tensor)).flatten()
            }
            Self::Permute { of, axes } => {
                let shape = of.shape();
                if axes.last() != Some(&(shape.len() - 1)) {
                    return None;
                }
                let map = of.row_map(next_tensor)?;
                let outer = &shape[..shape.len() - 1];
                Some(permuted_indices(outer, &axes[..outer.len()]).into_iter().map(|i| map[i]).collect())
            }
            Self::Dummy { .. } | Self::Affine { .. } | Self::NegExp(_) | Self::LogNeg(_) => None,
        }
    }
}

/// Rows of a shape: everything but the last axis.
fn num_rows(shape: &[usize]) -> usize {
    shape[..shape.len().saturating_sub(1)].iter().product()
}

/// For each element of the permuted array in row-major order, its row-major place in the original.
pub(super) fn permuted_indices(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * shape[i + 1];
    }
    let dims: Vec<_> = axes.iter().map(|&a| (shape[a], strides[a])).collect();
    let mut out = vec![0];
    for (size, stride) in dims {
        out = out.iter().flat_map(|&base| (0..size).map(move |i| base + i * stride)).collect();
    }
    out
}
