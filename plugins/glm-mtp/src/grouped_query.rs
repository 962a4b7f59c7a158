//! Grouped-query attention with partial rope.

use metrale_plugin_api::prelude::*;

use crate::config::{GlmConfig, GroupedQuery};

impl GlmConfig {
    /// `x: [T, hidden]` after the input norm; returns the same shape.
    pub(crate) fn grouped_query(
        &self,
        g: &Graph,
        w: &Weights,
        state: &str,
        attention: &GroupedQuery,
        x: Value,
    ) -> Result<Value> {
        let &GroupedQuery { num_heads, num_kv_heads, head_dim, .. } = attention;
        let proj = |name: &str, heads: usize| -> Result<Value> {
            let rows = heads * head_dim;
            let weight =
                g.weight(w.name(&format!("{name}.weight")), &[rows, self.hidden_size], Role::Column)?;
            let bias = if attention.bias {
                Some(g.weight(w.name(&format!("{name}.bias")), &[rows], Role::Column)?)
            } else {
                None
            };
            g.heads(g.linear_bias(x, weight, bias)?, heads, head_dim) // [T, heads, head_dim]
        };
        let (mut q, mut k) = (proj("q_proj", num_heads)?, proj("k_proj", num_kv_heads)?);
        let v = proj("v_proj", num_kv_heads)?;
        if attention.qk_norm {
            q = self.rms_norm(g, w.name("q_norm.weight"), head_dim, q)?;
            k = self.rms_norm(g, w.name("k_norm.weight"), head_dim, k)?;
        }
        let positions = g.positions()?;
        let q = g.rope(q, positions, &attention.rope)?;
        let k = g.rope(k, positions, &attention.rope)?;

        let cache = g.kv_cache(&format!("{state}.self"), &KvSpec::new(num_kv_heads, head_dim))?;
        let cache = g.kv_write(cache, k, Some(v))?;
        let y = g.attention(q, cache, &Attention::causal((head_dim as f64).powf(-0.5)))?;

        let o_proj = w.name("o_proj.weight");
        g.linear(g.flatten(y)?, g.weight(o_proj, &[self.hidden_size, num_heads * head_dim], Role::Row)?)
    }
}
