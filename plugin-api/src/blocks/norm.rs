//! Norms of parts of a row.

use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::weights::{Role, TensorName};

impl Graph {
    /// RMS norm of each of `groups` equal parts of a row by itself, with a weight `[groups · width]` stored around zero:
    /// `[T, groups · width]` gives `[T, groups, width]`.
    ///
    /// # Errors
    /// `x` is not of this graph, or the host refuses a shape.
    #[track_caller]
    pub fn grouped_rms_norm(
        &self,
        x: Value,
        weight: impl Into<TensorName>,
        [groups, width]: [usize; 2],
        eps: f64,
    ) -> Result<Value> {
        let weight = self.weight(weight, &[groups * width], Role::Replicated)?;
        let weight = self.weight_affine(self.weight_reshape(weight, &[groups, width])?, 1.0, 1.0)?;
        self.mul(self.rms_norm_unweighted(self.reshape(x, &[groups, width])?, eps)?, weight)
    }
}
