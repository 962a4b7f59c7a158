//! Feed-forward layers: SwiGLU, and a mixture of SwiGLU experts beside one that all tokens share.

use metrale_plugin_api::prelude::*;

use crate::config::GlmConfig;

impl GlmConfig {
    /// `scale · Σ weightₑ · expertₑ(x) + shared(x)`, experts chosen by sigmoid scores with a bias.
    pub(crate) fn moe(&self, g: &Graph, w: &Weights, x: Value) -> Result<Value> {
        let (hidden, inner, num_experts) = (self.hidden_size, self.moe_intermediate_size, self.num_experts);
        let gate = g.weight(w.name("gate.weight"), &[num_experts, hidden], Role::Router)?;
        let bias = g.weight(w.name("gate.e_score_correction_bias"), &[num_experts], Role::Router)?;
        let expert = |name: &str, shape: &[usize]| {
            g.expert_weights(w.name(&format!("experts.{{e}}.{name}.weight")), num_experts, shape)
        };
        let experts = Experts::swiglu(
            expert("gate_proj", &[inner, hidden])?,
            expert("up_proj", &[inner, hidden])?,
            expert("down_proj", &[hidden, inner])?,
        );
        let router = Router::Sigmoid {
            bias: Some(bias),
            renormalize: self.norm_topk_prob,
            groups: self.expert_groups,
        };
        let how = Moe { router, top_k: self.num_experts_per_tok, scale: self.routed_scaling_factor };
        let routed = g.moe(x, g.linear(x, gate)?, &experts, &how)?;
        match self.num_shared_experts {
            0 => Ok(routed),
            count => g.add(routed, self.swiglu(g, &w.scope("shared_experts"), count * inner, x)?),
        }
    }

    /// `down(silu(gate(x)) · up(x))`
    pub(crate) fn swiglu(&self, g: &Graph, w: &Weights, inner: usize, x: Value) -> Result<Value> {
        let hidden = self.hidden_size;
        let column = |name: &str| g.weight(w.name(name), &[inner, hidden], Role::Column);
        let gate = g.silu(g.linear(x, column("gate_proj.weight")?)?)?;
        let up = g.linear(x, column("up_proj.weight")?)?;
        g.linear(g.mul(gate, up)?, g.weight(w.name("down_proj.weight"), &[hidden, inner], Role::Row)?)
    }
}
