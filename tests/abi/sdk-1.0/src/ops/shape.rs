//! Views and rearrangements. Axis 0 is always the rows.

use crate::attr::{AttrValue, Attrs};
use crate::error::Result;
use crate::graph::{Graph, Value};

impl Graph {
    /// Keeps the rows and gives the rest of each row the shape `dims`: `[T, 12]` with `[3, 4]` gives `[T, 3, 4]`.
    #[track_caller]
    pub fn reshape(&self, x: Value, dims: &[usize]) -> Result<Value> {
        self.op1("reshape/1", &[x.0], &Attrs::new().with("dims", dims))
    }

    /// `[T, heads · dim]` as `[T, heads, dim]`.
    #[track_caller]
    pub fn heads(&self, x: Value, heads: usize, dim: usize) -> Result<Value> {
        self.reshape(x, &[heads, dim])
    }

    /// Each row flattened: `[T, heads, dim]` as `[T, heads · dim]`.
    #[track_caller]
    pub fn flatten(&self, x: Value) -> Result<Value> {
        self.op1("flatten/1", &[x.0], &Attrs::new())
    }

    /// Cuts one axis into pieces of the given sizes.
    #[track_caller]
    pub fn split<const N: usize>(&self, x: Value, axis: usize, sizes: [usize; N]) -> Result<[Value; N]> {
        self.op::<N>("split/1", &[x.0], &Attrs::new().with("axis", axis).with("sizes", &sizes[..]))
    }

    /// Like [`Graph::split`], for a number of pieces known only at run time.
    #[track_caller]
    pub fn split_many(&self, x: Value, axis: usize, sizes: &[usize]) -> Result<Vec<Value>> {
        self.op_many("split/1", &[x.0], &Attrs::new().with("axis", axis).with("sizes", sizes), sizes.len())
    }

    /// Joins along one axis.
    #[track_caller]
    pub fn concat(&self, parts: &[Value], axis: usize) -> Result<Value> {
        let inputs: Vec<_> = parts.iter().map(|v| v.0).collect();
        self.op1("concat/1", &inputs, &Attrs::new().with("axis", axis))
    }

    /// Repeats each entry of one axis `times` times in a row: a, a, b, b.
    #[track_caller]
    pub fn repeat(&self, x: Value, axis: usize, times: usize) -> Result<Value> {
        self.op1("repeat/1", &[x.0], &Attrs::new().with("axis", axis).with("times", times))
    }

    /// Reorders the axes of each row: axis `i` of the result is axis `axes[i]` of `x`; `axes[0]` must be 0.
    #[track_caller]
    pub fn permute(&self, x: Value, axes: &[usize]) -> Result<Value> {
        self.op1("permute/1", &[x.0], &Attrs::new().with("axes", AttrValue::from(axes)))
    }
}
