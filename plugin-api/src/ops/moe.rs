//! Mixture of experts.

use crate::attr::Attrs;
use crate::error::Result;
use crate::graph::{Graph, Operand, Value, Weight, optional};

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug)]
pub enum Router {
    /// Softmax over all experts, the `top_k` most likely ones.
    Softmax {
        /// Divide the chosen weights by their sum.
        renormalize: bool,
    },
    /// Sigmoid scores; a bias takes part in the choice only.
    Sigmoid {
        /// Added to the scores for choosing, `[num_experts]`.
        bias: Option<Weight>,
        /// Divide the chosen weights by their sum.
        renormalize: bool,
        /// Experts are chosen within the best `.1` of `.0` groups, a group scoring the sum of its two best.
        groups: (usize, usize),
    },
}

/// Weights of all experts, stacked on axis 0.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// `[experts, intermediate, hidden]`
    pub gate: Weight,
    /// `[experts, intermediate, hidden]`; experts of two matrices have none.
    pub up: Option<Weight>,
    /// `[experts, hidden, intermediate]`
    pub down: Weight,
    /// `[experts, intermediate]`
    pub gate_bias: Option<Weight>,
    /// `[experts, intermediate]`
    pub up_bias: Option<Weight>,
    /// `[experts, hidden]`
    pub down_bias: Option<Weight>,
    /// What happens between the matrices.
    pub activation: ExpertActivation,
}

/// What an expert computes between its matrices, from `g = gate·x` and `u = up·x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertActivation {
    /// `silu(min(g, limit)) · clamp(u, ±limit)`, without clamps if there is no limit.
    Silu {
        /// Largest gate, largest magnitude of `u`.
        limit: Option<f64>,
    },
    /// `g = min(g, limit)`; `(clamp(u, ±limit) + 1) · g · sigmoid(alpha · g)`.
    SwigluOai {
        /// Largest gate, largest magnitude of `u`.
        limit: f64,
        /// Slope of the sigmoid.
        alpha: f64,
    },
    /// `max(g, 0)`, times `u` if there is one.
    Relu,
}

impl Experts {
    /// SwiGLU experts without biases: `down(silu(gate(x)) · up(x))`.
    #[must_use]
    pub fn swiglu(gate: Weight, up: Weight, down: Weight) -> Self {
        Self {
            gate,
            up: Some(up),
            down,
            gate_bias: None,
            up_bias: None,
            down_bias: None,
            activation: ExpertActivation::Silu { limit: None },
        }
    }

    /// Experts of two layers with biases: `fc2(relu(fc1(x)))`, each a weight and its bias.
    #[must_use]
    pub fn relu(fc1: (Weight, Weight), fc2: (Weight, Weight)) -> Self {
        Self {
            gate: fc1.0,
            up: None,
            down: fc2.0,
            gate_bias: Some(fc1.1),
            up_bias: None,
            down_bias: Some(fc2.1),
            activation: ExpertActivation::Relu,
        }
    }

    /// With another activation.
    #[must_use]
    pub fn with_activation(self, activation: ExpertActivation) -> Self {
        Self { activation, ..self }
    }

    fn attrs(&self, attrs: Attrs) -> Attrs {
        match self.activation {
            ExpertActivation::Silu { limit } => attrs.with("activation", "silu").with_some("limit", limit),
            ExpertActivation::SwigluOai { limit, alpha } => {
                attrs.with("activation", "swigluoai").with("limit", limit).with("alpha", alpha)
            }
            ExpertActivation::Relu => attrs.with("activation", "relu"),
        }
    }
}

/// How a mixture is computed.
#[derive(Clone, Copy, Debug)]
pub struct Moe {
    /// Choosing and weighting.
    pub router: Router,
    /// Experts per token.
    pub top_k: usize,
    /// Multiplies the weights.
    pub scale: f64,
}

impl Graph {
    /// `Σ weightₑ · expertₑ(x)` over the experts chosen from `logits: [T, experts]`. Ties go to the lower index.
    #[track_caller]
    pub fn moe(&self, x: Value, logits: Value, experts: &Experts, how: &Moe) -> Result<Value> {
        let attrs = experts.attrs(Attrs::new().with("top_k", how.top_k).with("scale", how.scale));
        let (bias, attrs) = match how.router {
            Router::Softmax { renormalize } => {
                (None, attrs.with("router", "softmax").with("renormalize", renormalize))
            }
            Router::Sigmoid { bias, renormalize, groups } => (
                bias,
                attrs
                    .with("router", "sigmoid")
                    .with("renormalize", renormalize)
                    .with("num_groups", groups.0)
                    .with("top_groups", groups.1),
            ),
        };
        let inputs = [
            x.id(),
            logits.id(),
            experts.gate.id(),
            optional(experts.up),
            experts.down.id(),
            optional(bias),
            optional(experts.gate_bias),
            optional(experts.up_bias),
            optional(experts.down_bias),
        ];
        self.op1("moe/1", &inputs, &attrs)
    }
}
