//! Feed-forward layers: gated linear units, and a mixture of them beside a shared one.

use metrale_plugin_api::prelude::*;

use crate::config::MiniMaxConfig;

impl MiniMaxConfig {
    /// `Σ weightₑ · expertₑ(x) + shared(x)`, experts chosen by sigmoid scores with a bias.
    pub(crate) fn moe(&self, g: &Graph, w: &Weights, x: Value) -> Result<Value> {
        let (hidden, inner, num_experts) = (self.hidden_size, self.intermediate_size, self.num_experts);
        let gate =
            g.weight(w.twin("gate.weight", "ffn_gate_inp.weight"), &[num_experts, hidden], Role::Router)?;
        let bias = if self.use_routing_bias {
            let name = w.twin("e_score_correction_bias", "exp_probs_b.bias");
            Some(g.weight(name, &[num_experts], Role::Router)?)
        } else {
            None
        };
        let experts = Experts::swiglu(
            self.expert(g, w, ("w1", "ffn_gate_exps"), [inner, hidden])?,
            self.expert(g, w, ("w3", "ffn_up_exps"), [inner, hidden])?,
            self.expert(g, w, ("w2", "ffn_down_exps"), [hidden, inner])?,
        );
        let router = Router::Sigmoid { bias, renormalize: true, groups: (1, 1) };
        let how = Moe { router, top_k: self.num_experts_per_tok, scale: self.routed_scaling_factor };
        let routed = g.moe(x, g.linear(x, gate)?, &experts.with_activation(self.activation), &how)?;
        match self.shared_intermediate_size {
            0 => Ok(routed),
            width => g.add(routed, self.mlp(g, &w.scope("shared_experts"), width, x)?),
        }
    }

    /// Matrices of all experts; GGUF files stack them.
    fn expert(
        &self,
        g: &Graph,
        w: &Weights,
        (name, gguf): (&str, &str),
        shape: [usize; 2],
    ) -> Result<Weight> {
        if self.is_gguf {
            let stacked = [self.num_experts, shape[0], shape[1]];
            return g.weight(w.gguf_name(&format!("{gguf}.weight")), &stacked, Role::Expert);
        }
        g.expert_weights(w.name(&format!("experts.{{e}}.{name}.weight")), self.num_experts, &shape)
    }

    /// `down(act(gate(x), up(x)))`
    pub(crate) fn mlp(&self, g: &Graph, w: &Weights, inner: usize, x: Value) -> Result<Value> {
        let hidden = self.hidden_size;
        let column = |name: &str| g.linear(x, g.weight(w.name(name), &[inner, hidden], Role::Column)?);
        let (gate, up) = (column("gate_proj.weight")?, column("up_proj.weight")?);
        let y = self.gated(g, gate, up)?;
        g.linear(y, g.weight(w.name("down_proj.weight"), &[hidden, inner], Role::Row)?)
    }

    /// The gated unit of the family, as [`ExpertActivation`] writes it.
    fn gated(&self, g: &Graph, gate: Value, up: Value) -> Result<Value> {
        let ExpertActivation::SwigluOai { limit, alpha } = self.activation else {
            return g.mul(g.silu(gate)?, up);
        };
        let gate = g.clamp(gate, None, Some(limit))?;
        let up = g.affine(g.clamp(up, Some(-limit), Some(limit))?, 1.0, 1.0)?;
        g.mul(g.mul(up, gate)?, g.sigmoid(g.scale(gate, alpha)?)?)
    }
}
