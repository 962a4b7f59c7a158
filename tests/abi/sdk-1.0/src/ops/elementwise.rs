//! Elementwise ops; shapes broadcast from the right as in numpy.

use crate::attr::Attrs;
use crate::error::Result;
use crate::graph::{Graph, Operand, Value};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:literal;)*) => {
        impl Graph {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, x: Value) -> Result<Value> {
                self.op1($op, &[x.0], &Attrs::new())
            }
        )*}
    };
}

unary! {
    /// `x · sigmoid(x)`.
    silu => "silu/1";
    /// `1 / (1 + e⁻ˣ)`.
    sigmoid => "sigmoid/1";
    /// `max(x, 0)`.
    relu => "relu/1";
    /// `tanh(x)`.
    tanh => "tanh/1";
    /// `eˣ`.
    exp => "exp/1";
    /// `ln(1 + eˣ)`.
    softplus => "softplus/1";
    /// `x / 2 · (1 + erf(x / √2))`.
    gelu => "gelu/1";
    /// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
    gelu_tanh => "gelu_tanh/1";
    /// Softmax over the last axis.
    softmax => "softmax/1";
}

impl Graph {
    /// `a + b`.
    #[track_caller]
    pub fn add(&self, a: Value, b: impl Operand) -> Result<Value> {
        self.op1("add/1", &[a.0, b.id()], &Attrs::new())
    }

    /// `a · b`.
    #[track_caller]
    pub fn mul(&self, a: Value, b: impl Operand) -> Result<Value> {
        self.op1("mul/1", &[a.0, b.id()], &Attrs::new())
    }

    /// `a / b`.
    #[track_caller]
    pub fn div(&self, a: Value, b: impl Operand) -> Result<Value> {
        self.op1("div/1", &[a.0, b.id()], &Attrs::new())
    }

    /// `factor · x + shift`.
    #[track_caller]
    pub fn affine(&self, x: Value, factor: f64, shift: f64) -> Result<Value> {
        self.op1("affine/1", &[x.0], &Attrs::new().with("factor", factor).with("shift", shift))
    }

    /// `factor · x`.
    #[track_caller]
    pub fn scale(&self, x: Value, factor: f64) -> Result<Value> {
        self.affine(x, factor, 0.0)
    }

    /// `min(max(x, min), max)`; a missing bound does not bind.
    #[track_caller]
    pub fn clamp(&self, x: Value, min: Option<f64>, max: Option<f64>) -> Result<Value> {
        self.op1("clamp/1", &[x.0], &Attrs::new().with_some("min", min).with_some("max", max))
    }

    /// `cap · tanh(x / cap)`.
    #[track_caller]
    pub fn softcap(&self, x: Value, cap: f64) -> Result<Value> {
        self.op1("softcap/1", &[x.0], &Attrs::new().with("cap", cap))
    }

    /// `sign(x) · √max(|x|, min)`.
    #[track_caller]
    pub fn signed_sqrt(&self, x: Value, min: f64) -> Result<Value> {
        self.op1("signed_sqrt/1", &[x.0], &Attrs::new().with("min", min))
    }

    /// Brings the matrices `x: [T, …, n, n]` near doubly stochastic form by normalising rows and columns in turn.
    #[track_caller]
    pub fn sinkhorn(&self, x: Value, iterations: usize, eps: f64) -> Result<Value> {
        self.op1("sinkhorn/1", &[x.0], &Attrs::new().with("iterations", iterations).with("eps", eps))
    }

    /// Mean over one axis, which disappears. Axis 0 is the rows and cannot be reduced.
    #[track_caller]
    pub fn mean(&self, x: Value, axis: usize) -> Result<Value> {
        self.op1("mean/1", &[x.0], &Attrs::new().with("axis", axis))
    }

    /// Sum over one axis, which disappears. Axis 0 is the rows and cannot be reduced.
    #[track_caller]
    pub fn sum(&self, x: Value, axis: usize) -> Result<Value> {
        self.op1("sum/1", &[x.0], &Attrs::new().with("axis", axis))
    }
}
