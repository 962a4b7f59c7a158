//! Dense row-major arrays, and how one reads another: by broadcasting, reordering, repeating.

use crate::error::Fault;

/// Real numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

/// Token ids, positions, indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ints {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<i64>,
}

/// What a value of a graph holds during a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Activations.
    Float(Tensor),
    /// Token ids, positions, indices.
    Int(Ints),
    /// A state; its contents are in the sequences.
    State,
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Float(tensor)
    }
}

impl From<Ints> for Value {
    fn from(ints: Ints) -> Self {
        Self::Int(ints)
    }
}

impl Tensor {
    /// Wraps row-major data.
    ///
    /// # Errors
    /// The shape has another number of elements.
    pub fn new(shape: &[usize], data: Vec<f32>) -> Result<Self, Fault> {
        check(shape, data.len())?;
        Ok(Self { shape: shape.to_vec(), data })
    }

    pub(crate) fn zeros(shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), data: vec![0.0; shape.iter().product()] }
    }

    /// Dimensions, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements in row-major order.
    #[must_use]
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// Size of the last axis.
    #[must_use]
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Elements of one entry of axis 0.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// One entry of axis 0.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f32] {
        let len = self.row_len();
        &self.data[index * len..(index + 1) * len]
    }

    /// Entries `range` of axis 0.
    ///
    /// # Panics
    /// If the range leaves the axis.
    #[must_use]
    pub fn rows(&self, range: std::ops::Range<usize>) -> Self {
        let len = self.row_len();
        let mut shape = self.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = range.len();
        }
        Self { shape, data: self.data[range.start * len..range.end * len].to_vec() }
    }

    pub(crate) fn map(&self, f: impl Fn(f32) -> f32) -> Self {
        Self { shape: self.shape.clone(), data: self.data.iter().map(|&x| f(x)).collect() }
    }

    /// `f` of every vector along the last axis, which keeps its size.
    pub(crate) fn map_last(&self, f: impl Fn(&[f32]) -> Vec<f32>) -> Self {
        let data = self.data.chunks(self.width().max(1)).flat_map(f).collect();
        Self { shape: self.shape.clone(), data }
    }

    /// `f` of two tensors whose shapes broadcast from the right.
    pub(crate) fn zip(&self, other: &Self, f: impl Fn(f32, f32) -> f32) -> Result<Self, Fault> {
        let shape = broadcast(&self.shape, &other.shape)
            .ok_or_else(|| Fault::Shapes { left: self.shape.clone(), right: other.shape.clone() })?;
        let left = sources(&shape, &aligned_strides(&self.shape, shape.len()));
        let right = sources(&shape, &aligned_strides(&other.shape, shape.len()));
        let data = left.zip(right).map(|(l, r)| f(self.data[l], other.data[r])).collect();
        Ok(Self { shape, data })
    }

    /// The same elements under another shape.
    pub(crate) fn reshaped(&self, shape: Vec<usize>) -> Result<Self, Fault> {
        check(&shape, self.data.len())?;
        Ok(Self { shape, data: self.data.clone() })
    }

    /// Axis `i` of the result is axis `axes[i]` of `self`.
    pub(crate) fn permuted(&self, axes: &[usize]) -> Self {
        let strides = strides(&self.shape);
        let shape: Vec<_> = axes.iter().map(|&a| self.shape[a]).collect();
        let taken: Vec<_> = axes.iter().map(|&a| strides[a]).collect();
        let data = sources(&shape, &taken).map(|i| self.data[i]).collect();
        Self { shape, data }
    }

    /// `(elements before, size, elements after)` of an axis.
    pub(crate) fn around(&self, axis: usize) -> (usize, usize, usize) {
        let before = self.shape[..axis].iter().product();
        let after = self.shape[axis + 1..].iter().product();
        (before, self.shape[axis], after)
    }
}

impl Ints {
    /// Wraps row-major data.
    ///
    /// # Errors
    /// The shape has another number of elements.
    pub fn new(shape: &[usize], data: Vec<i64>) -> Result<Self, Fault> {
        check(shape, data.len())?;
        Ok(Self { shape: shape.to_vec(), data })
    }

    /// Dimensions, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements in row-major order.
    #[must_use]
    pub fn data(&self) -> &[i64] {
        &self.data
    }

    /// One entry of axis 0.
    pub(crate) fn row(&self, index: usize) -> &[i64] {
        let len: usize = self.shape.iter().skip(1).product();
        &self.data[index * len..(index + 1) * len]
    }
}

/// `Σ aᵢ bᵢ`, accumulated in f64.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    const LANES: usize = 8;
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += f64::from(x[lane]) * f64::from(y[lane]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    sums.iter().sum::<f64>() + rest
}

/// `softmax(x)`, in f64; all zeros if every entry is −∞.
pub(crate) fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return vec![0.0; x.len()];
    }
    let exps: Vec<f64> = x.iter().map(|v| (v - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|e| e / sum).collect()
}

/// Indices of the `count` largest entries, largest first; of equal entries the lowest index first.
pub(crate) fn top_k(x: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
    order.truncate(count);
    order
}

fn check(shape: &[usize], elements: usize) -> Result<(), Fault> {
    if shape.iter().product::<usize>() == elements {
        Ok(())
    } else {
        Err(Fault::Elements { shape: shape.to_vec(), found: elements })
    }
}

fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// Strides of `shape` seen with `rank` axes: 0 where one entry serves all.
fn aligned_strides(shape: &[usize], rank: usize) -> Vec<usize> {
    let own = strides(shape).into_iter().zip(shape).map(|(s, &n)| if n == 1 { 0 } else { s });
    std::iter::repeat_n(0, rank - shape.len()).chain(own).collect()
}

fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y || y == 1 => Some(x),
            (1, y) => Some(y),
            _ => None,
        })
        .collect()
}

/// For each element of an array of `shape`, in row-major order, the place `Σ indexᵢ · stridesᵢ`.
fn sources(shape: &[usize], strides: &[usize]) -> impl Iterator<Item = usize> + use<> {
    let count: usize = shape.iter().product();
    let mut index = vec![0; shape.len()];
    let mut place = 0;
    let (shape, strides) = (shape.to_vec(), strides.to_vec());
    (0..count).map(move |_| {
        let current = place;
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            place += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            place -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
        current
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize], data: &[f32]) -> Tensor {
        Tensor::new(shape, data.to_vec()).unwrap()
    }

    #[test]
    fn shapes_broadcast_from_the_right() {
        let a = tensor(&[2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
        let b = tensor(&[2], &[10.0, 20.0]);
        let sum = a.zip(&b, |x, y| x + y).unwrap();
        assert_eq!(sum.shape(), [2, 2, 2]);
        assert_eq!(sum.data(), [11.0, 21.0, 12.0, 22.0, 13.0, 23.0, 14.0, 24.0]);
    }

    #[test]
    fn shapes_that_differ_are_refused() {
        assert!(tensor(&[2], &[1.0, 2.0]).zip(&tensor(&[3], &[1.0; 3]), |x, _| x).is_err());
    }

    #[test]
    fn permutation_moves_axes() {
        let x = tensor(&[1, 2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let y = x.permuted(&[0, 2, 1]);
        assert_eq!(y.shape(), [1, 3, 2]);
        assert_eq!(y.data(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    }

    #[test]
    fn ties_go_to_the_lowest_index() {
        assert_eq!(top_k(&[0.0, 1.0, 1.0, 1.0], 2), [1, 2]);
    }

    #[test]
    fn a_softmax_over_nothing_is_zero() {
        assert_eq!(softmax(&[f64::NEG_INFINITY; 2]), [0.0, 0.0]);
    }
}
