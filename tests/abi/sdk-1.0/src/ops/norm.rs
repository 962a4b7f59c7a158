//! Normalisations over the last axis.

use crate::attr::Attrs;
use crate::error::Result;
use crate::graph::{Graph, Operand, Value, Weight, optional};

impl Graph {
    /// `w · x / sqrt(mean(x²) + eps)`. On `[T, heads, dim]` it is the per-head norm.
    #[track_caller]
    pub fn rms_norm(&self, x: Value, weight: Weight, eps: f64) -> Result<Value> {
        self.op1("rms_norm/1", &[x.0, weight.id()], &Attrs::new().with("eps", eps))
    }

    /// `x / sqrt(mean(x²) + eps)`, without a weight.
    #[track_caller]
    pub fn rms_norm_unweighted(&self, x: Value, eps: f64) -> Result<Value> {
        self.op1("rms_norm/1", &[x.0], &Attrs::new().with("eps", eps))
    }

    /// `(1 + w) · x / sqrt(mean(x²) + eps)`: weights stored around zero.
    #[track_caller]
    pub fn rms_norm_zero_centered(&self, x: Value, weight: Weight, eps: f64) -> Result<Value> {
        self.op1(
            "rms_norm/1",
            &[x.0, weight.id()],
            &Attrs::new().with("eps", eps).with("zero_centered", true),
        )
    }

    /// `w · (x − mean) / sqrt(var + eps) + b`.
    #[track_caller]
    pub fn layer_norm(&self, x: Value, weight: Weight, bias: Option<Weight>, eps: f64) -> Result<Value> {
        self.op1("layer_norm/1", &[x.0, weight.id(), optional(bias)], &Attrs::new().with("eps", eps))
    }

    /// `x / sqrt(Σx² + eps)`: the sum, not the mean.
    #[track_caller]
    pub fn l2_norm(&self, x: Value, eps: f64) -> Result<Value> {
        self.op1("l2_norm/1", &[x.0], &Attrs::new().with("eps", eps))
    }
}
