//! Matrix products with weights.

use crate::attr::Attrs;
use crate::error::Result;
use crate::graph::{Graph, Operand, Value, Weight, optional};

impl Graph {
    /// `y = x · Wᵀ`: `[…, in]` and `[out, in]` give `[…, out]`.
    #[track_caller]
    pub fn linear(&self, x: Value, weight: Weight) -> Result<Value> {
        self.linear_bias(x, weight, None)
    }

    /// `y = x · Wᵀ + b`, with an optional bias `[out]`.
    #[track_caller]
    pub fn linear_bias(&self, x: Value, weight: Weight, bias: Option<Weight>) -> Result<Value> {
        self.op1("linear/1", &[x.0, weight.id(), optional(bias)], &Attrs::new())
    }

    /// Every head's product with a matrix of its own: `[T, heads, in]` and `[heads, out, in]` give `[T, heads, out]`.
    #[track_caller]
    pub fn head_linear(&self, x: Value, weight: Weight) -> Result<Value> {
        self.op1("head_linear/1", &[x.0, weight.id()], &Attrs::new())
    }
}
