//! Feed-forward layers: a mixture of SwiGLU experts beside a gated shared one.

use metrale_plugin_api::prelude::*;

use crate::config::QwenConfig;

impl QwenConfig {
    /// `Σ weightₑ · expertₑ(x) + sigmoid(gate(x)) · shared(x)`, experts chosen by softmax.
    pub(crate) fn moe(&self, g: &Graph, w: &Weights, x: Value) -> Result<Value> {
        let sizes = [self.moe_intermediate_size, self.hidden_size];
        let logits = g.project(x, w, "gate.weight", self.num_experts, Role::Router)?;
        let experts = g.swiglu_experts(&w.scope("experts"), self.num_experts, sizes)?;
        let router = Router::Softmax { renormalize: self.norm_topk_prob };
        let how = Moe { router, top_k: self.num_experts_per_tok, scale: 1.0 };
        let routed = g.moe(x, logits, &experts, &how)?;

        let gate = g.sigmoid(g.project(x, w, "shared_expert_gate.weight", 1, Role::Replicated)?)?; // [T, 1]
        let shared = g.swiglu(x, &w.scope("shared_expert"), self.shared_expert_intermediate_size)?;
        g.add(routed, g.mul(shared, gate)?)
    }
}
