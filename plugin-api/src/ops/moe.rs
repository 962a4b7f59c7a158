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

/// Weights of all experts, stacked. An expert computes `down(silu(gate(x)) · up(x))`.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// `[experts, intermediate, hidden]`
    pub gate: Weight,
    /// `[experts, intermediate, hidden]`
    pub up: Weight,
    /// `[experts, hidden, intermediate]`
    pub down: Weight,
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
        let attrs = Attrs::new().with("top_k", how.top_k).with("scale", how.scale);
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
        let inputs =
            [x.id(), logits.id(), experts.gate.id(), experts.up.id(), experts.down.id(), optional(bias)];
        self.op1("moe/1", &inputs, &attrs)
    }
}
