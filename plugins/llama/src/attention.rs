//! Grouped-query attention with rotary positions.

use metrale_plugin_api::prelude::*;

use crate::config::LlamaConfig;
use crate::{bias, norm_weight};

impl LlamaConfig {
    /// `h: [T, hidden]` after the input norm; returns the same shape.
    pub(crate) fn attention(&self, g: &Graph, w: &Weights, layer: usize, h: Value) -> Result<Value> {
        let w = &w.scope("self_attn");
        let (heads, kv_heads, dim) = (self.num_heads, self.num_kv_heads, self.head_dim);

        let mut q = self.qk_proj(g, w, h, ("q_proj", "attn_q"), heads)?; // [T, heads, dim]
        let mut k = self.qk_proj(g, w, h, ("k_proj", "attn_k"), kv_heads)?; // [T, kv_heads, dim]
        let v = g.linear_bias(
            h,
            g.weight(
                w.twin("v_proj.weight", "attn_v.weight"),
                &[kv_heads * dim, self.hidden_size],
                Role::Column,
            )?,
            bias(g, self.qkv_bias, w.twin("v_proj.bias", "attn_v.bias"), kv_heads * dim, Role::Column)?,
        )?;
        let v = g.heads(v, kv_heads, dim)?;

        if self.qk_norm {
            q = g.rms_norm(
                q,
                norm_weight(g, w.twin("q_norm.weight", "attn_q_norm.weight"), dim)?,
                self.rms_norm_eps,
            )?;
            k = g.rms_norm(
                k,
                norm_weight(g, w.twin("k_norm.weight", "attn_k_norm.weight"), dim)?,
                self.rms_norm_eps,
            )?;
        }
        if self.uses_rope(layer) {
            let positions = g.positions()?;
            let inv_freq = self.inv_freq(g)?;
            q = g.rope_with(q, positions, inv_freq, &self.rope)?;
            k = g.rope_with(k, positions, inv_freq, &self.rope)?;
        }

        let window = self.window(layer);
        let cache =
            g.kv_cache(&format!("layers.{layer}.self"), &KvSpec::new(kv_heads, dim).with_window(window))?;
        let cache = g.kv_write(cache, k, Some(v))?;
        let scale = (dim as f64).powf(-0.5);
        let y = g.attention(q, cache, &Attention::causal(scale).with_window(window))?; // [T, heads, dim]

        g.linear_bias(
            g.flatten(y)?,
            g.weight(
                w.twin("o_proj.weight", "attn_output.weight"),
                &[self.hidden_size, heads * dim],
                Role::Row,
            )?,
            bias(
                g,
                self.o_bias,
                w.twin("o_proj.bias", "attn_output.bias"),
                self.hidden_size,
                Role::Replicated,
            )?,
        )
    }

    /// Query or key projection, as heads. GGUF files of architecture `llama` store its rows in another order.
    fn qk_proj(
        &self,
        g: &Graph,
        w: &Weights,
        h: Value,
        (name, gguf): (&str, &str),
        heads: usize,
    ) -> Result<Value> {
        let rows = heads * self.head_dim;
        let fetch = |part: &str, shape: &[usize]| -> Result<Weight> {
            let (name, gguf) = (format!("{name}.{part}"), format!("{gguf}.{part}"));
            if !self.gguf_permuted {
                return g.weight(w.twin(&name, &gguf), shape, Role::Column);
            }
            let plain = g.weight(w.name(&name), shape, Role::Column)?;
            let permuted = g.weight(w.gguf_name(&gguf), shape, Role::Column)?;
            g.first_of(&[plain, g.weight_unpermute_rope(permuted, heads, shape)?])
        };
        let weight = fetch("weight", &[rows, self.hidden_size])?;
        let qk_bias = if self.qkv_bias { Some(fetch("bias", &[rows])?) } else { None };
        g.heads(g.linear_bias(h, weight, qk_bias)?, heads, self.head_dim)
    }

    /// Frequencies from the configuration; GGUF files of Llama 3 carry their scaling as a tensor of divisors.
    fn inv_freq(&self, g: &Graph) -> Result<Value> {
        let inv_freq = g.constant(&self.rope.inv_freq)?;
        if self.is_gguf && g.tensor_exists("rope_freqs.weight") {
            let factors = g.weight("rope_freqs.weight", &[self.rope.inv_freq.len()], Role::Replicated)?;
            return g.div(inv_freq, factors);
        }
        Ok(inv_freq)
    }
}
