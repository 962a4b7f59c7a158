//! Multi-head latent attention (DeepSeek-V2, 2024) in its absorbed form: the cache holds one latent and one rotated key per
//! token, and each head's up-projections are applied to its query and to its result instead of to every key and value.

use metrale_plugin_api::prelude::*;

use crate::config::{GlmConfig, Latent};

/// Of the norms of both bottlenecks, whatever config.json says.
const LATENT_NORM_EPS: f64 = 1e-6;

impl GlmConfig {
    /// `x: [T, hidden]` after the input norm; returns the same shape. `chooses` says whether the layer has an indexer of its
    /// own, in a model that has them.
    pub(crate) fn latent(
        &self,
        g: &Graph,
        w: &Weights,
        (state, chooses): (&str, bool),
        attention: &Latent,
        x: Value,
    ) -> Result<Value> {
        let &Latent { num_heads, kv_lora_rank, nope_dim, rope_dim, v_dim, .. } = attention;
        let positions = g.positions()?;
        let (q_latent, q) = self.queries(g, w, attention, x)?;
        let [q_nope, q_rope] = g.split(q, 2, [nope_dim, rope_dim])?;
        let q_rope = g.rope(q_rope, positions, &attention.rope)?;

        let kv_a = g.weight(
            w.name("kv_a_proj_with_mqa.weight"),
            &[kv_lora_rank + rope_dim, self.hidden_size],
            Role::Replicated,
        )?;
        let [latent, k_rope] = g.split(g.linear(x, kv_a)?, 1, [kv_lora_rank, rope_dim])?;
        let latent = latent_norm(g, w.name("kv_a_layernorm.weight"), kv_lora_rank, latent)?;
        let k_rope = g.rope(g.heads(k_rope, 1, rope_dim)?, positions, &attention.rope)?;

        // Rows of kv_b_proj: per head, first what makes its key, then what makes its value.
        let kv_b = g.weight(
            w.name("kv_b_proj.weight"),
            &[num_heads * (nope_dim + v_dim), kv_lora_rank],
            Role::Column,
        )?;
        let kv_b = g.weight_reshape(kv_b, &[num_heads, nope_dim + v_dim, kv_lora_rank])?;
        let to_key = g.weight_permute(g.weight_slice(kv_b, 1, 0, nope_dim)?, &[0, 2, 1])?;
        let to_value = g.weight_slice(kv_b, 1, nope_dim, nope_dim + v_dim)?;

        let q = g.concat(&[g.head_linear(q_nope, to_key)?, q_rope], 2)?; // [T, heads, rank + rope]
        let k = g.concat(&[g.heads(latent, 1, kv_lora_rank)?, k_rope], 2)?; // [T, 1, rank + rope]
        let select = self.selection(g, &w.scope("indexer"), (state, chooses), attention, (q_latent, x))?;
        let spec = KvSpec { v_dim: kv_lora_rank, ..KvSpec::keys_only(1, kv_lora_rank + rope_dim) };
        let cache = g.kv_write(g.kv_cache(&format!("{state}.self"), &spec)?, k, None)?;
        let how = Attention { select, ..Attention::causal(attention.scale) };
        let y = g.head_linear(g.attention(q, cache, &how)?, to_value)?; // [T, heads, v]

        let o_proj = w.name("o_proj.weight");
        g.linear(g.flatten(y)?, g.weight(o_proj, &[self.hidden_size, num_heads * v_dim], Role::Row)?)
    }

    /// The queries' bottleneck `[T, q_lora_rank]` (without one, `x`), and the queries `[T, heads, nope + rope]`.
    fn queries(&self, g: &Graph, w: &Weights, attention: &Latent, x: Value) -> Result<(Value, Value)> {
        let (heads, dim) = (attention.num_heads, attention.nope_dim + attention.rope_dim);
        let Some(rank) = attention.q_lora_rank else {
            let q_proj = g.weight(w.name("q_proj.weight"), &[heads * dim, self.hidden_size], Role::Column)?;
            return Ok((x, g.heads(g.linear(x, q_proj)?, heads, dim)?));
        };
        let q_a = g.weight(w.name("q_a_proj.weight"), &[rank, self.hidden_size], Role::Replicated)?;
        let latent = latent_norm(g, w.name("q_a_layernorm.weight"), rank, g.linear(x, q_a)?)?;
        let q_b = g.weight(w.name("q_b_proj.weight"), &[heads * dim, rank], Role::Column)?;
        Ok((latent, g.heads(g.linear(latent, q_b)?, heads, dim)?))
    }
}

fn latent_norm(g: &Graph, name: TensorName, width: usize, x: Value) -> Result<Value> {
    g.rms_norm(x, g.weight(name, &[width], Role::Replicated)?, LATENT_NORM_EPS)
}
