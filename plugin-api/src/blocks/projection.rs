//! Products with weights that are asked for by name.

use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::weights::{Role, Weights};

impl Graph {
    /// `x · Wᵀ` with the tensor `name` of `out` rows and as many columns as `x` is wide: `[…, in]` gives `[…, out]`.
    ///
    /// # Errors
    /// `x` is not of this graph, or has no fixed width.
    #[track_caller]
    pub fn project(&self, x: Value, w: &Weights, name: &str, out: usize, role: Role) -> Result<Value> {
        let width = self.shape(x)?.last().copied().flatten().unwrap_or(0);
        self.linear(x, self.weight(w.name(name), &[out, width], role)?)
    }
}
