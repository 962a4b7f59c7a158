//! Feed-forward layers: SwiGLU, and a mixture of SwiGLU experts beside a gated shared one.

use metrale_plugin_api::prelude::*;

use crate::config::QwenConfig;

impl QwenConfig {
    /// `Σ weightₑ · expertₑ(x) + sigmoid(gate(x)) · shared(x)`, experts chosen by softmax.
    pub(crate) fn moe(&self, g: &Graph, w: &Weights, x: Value) -> Result<Value> {
        let (hidden, inner, num_experts) = (self.hidden_size, self.moe_intermediate_size, self.num_experts);
        let logits = g.linear(x, g.weight(w.name("gate.weight"), &[num_experts, hidden], Role::Router)?)?;
        let expert = |name: &str, shape: &[usize]| {
            g.expert_weights(w.name(&format!("experts.{{e}}.{name}.weight")), num_experts, shape)
        };
        // One tensor per expert, or all in one with the rows of gate and up one after another.
        let gate_up =
            g.weight(w.name("experts.gate_up_proj"), &[num_experts, 2 * inner, hidden], Role::Expert)?;
        let half = |i: usize| g.weight_slice(gate_up, 1, i * inner, (i + 1) * inner);
        let down = g.weight(w.name("experts.down_proj"), &[num_experts, hidden, inner], Role::Expert)?;
        let experts = Experts::swiglu(
            g.first_of(&[expert("gate_proj", &[inner, hidden])?, half(0)?])?,
            g.first_of(&[expert("up_proj", &[inner, hidden])?, half(1)?])?,
            g.first_of(&[expert("down_proj", &[hidden, inner])?, down])?,
        );
        let router = Router::Softmax { renormalize: self.norm_topk_prob };
        let routed =
            g.moe(x, logits, &experts, &Moe { router, top_k: self.num_experts_per_tok, scale: 1.0 })?;

        let gate = g.weight(w.name("shared_expert_gate.weight"), &[1, hidden], Role::Replicated)?;
        let gate = g.sigmoid(g.linear(x, gate)?)?; // [T, 1]
        let shared = self.swiglu(g, &w.scope("shared_expert"), self.shared_expert_intermediate_size, x)?;
        g.add(routed, g.mul(shared, gate)?)
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
