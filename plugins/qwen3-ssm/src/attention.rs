//! Gated attention: grouped-query attention with partial rope, whose output passes a sigmoid gate per head.

use metrale_plugin_api::prelude::*;

use crate::config::QwenConfig;

impl QwenConfig {
    /// `x: [T, hidden]` after the input norm; returns the same shape.
    pub(crate) fn attention(&self, g: &Graph, w: &Weights, state: &str, x: Value) -> Result<Value> {
        let (heads, kv_heads, dim) = (self.num_heads, self.num_kv_heads, self.head_dim);
        let proj = |name: &str, heads: usize, dim: usize| {
            g.heads(g.project(x, w, name, heads * dim, Role::Column)?, heads, dim)
        };
        // Each head's rows of q_proj hold its query, then its gate.
        let [q, gate] = g.split(proj("q_proj.weight", heads, 2 * dim)?, 2, [dim, dim])?;
        let k = proj("k_proj.weight", kv_heads, dim)?;
        let v = proj("v_proj.weight", kv_heads, dim)?;

        let positions = self.positions(g)?;
        let q = g.rope(self.rms_norm(g, w, "q_norm", q)?, positions, &self.rope)?;
        let k = g.rope(self.rms_norm(g, w, "k_norm", k)?, positions, &self.rope)?;

        let cache = g.kv_cache(&format!("{state}.self"), &KvSpec::new(kv_heads, dim))?;
        let cache = g.kv_write(cache, k, Some(v))?;
        let select = self.select(g, &w.scope("indexer"), state, x)?;
        let how = Attention { select, ..Attention::causal((dim as f64).powf(-0.5)) };
        let y = g.attention(q, cache, &how)?; // [T, heads, dim]

        let y = g.flatten(g.mul(y, g.sigmoid(gate)?)?)?;
        g.project(y, w, "o_proj.weight", self.hidden_size, Role::Row)
    }

    /// Where images are, rows and columns of their patches are positions of their own.
    pub(crate) fn positions(&self, g: &Graph) -> Result<Value> {
        if self.vision.is_some() { g.mrope_positions() } else { g.positions() }
    }
}
