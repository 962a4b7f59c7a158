//! The indexer of sparse attention (DeepSeek-V3.2, 2025): a light attention whose best-scoring tokens are the ones that the
//! layer, and the layers after it that share its choice, attend to.

use metrale_plugin_api::prelude::*;

use crate::config::{GlmConfig, Latent};

/// Of the key norm, whatever config.json says.
const KEY_NORM_EPS: f64 = 1e-6;
/// Under which layers find the choice of an earlier one.
const CHOICE: &str = "chosen_tokens";

impl GlmConfig {
    /// The tokens that a layer attends to; `None` stands for all. Chosen from the queries' bottleneck and the layer's input.
    pub(crate) fn selection(
        &self,
        g: &Graph,
        w: &Weights,
        (state, chooses): (&str, bool),
        attention: &Latent,
        (q_latent, x): (Value, Value),
    ) -> Result<Option<Selection>> {
        let Some(indexer) = &attention.indexer else { return Ok(None) };
        if !chooses {
            return Ok(Some(Selection { entries: g.latest(CHOICE)?, block: 1 }));
        }
        let (heads, dim, positions) = (indexer.num_heads, indexer.head_dim, g.positions()?);
        let rank = attention.q_lora_rank.unwrap_or(self.hidden_size);
        let proj = |name: &str, x: Value, shape: [usize; 2], role: Role| {
            g.linear(x, g.weight(w.name(&format!("{name}.weight")), &shape, role)?)
        };
        let q = g.heads(proj("wq_b", q_latent, [heads * dim, rank], Role::Replicated)?, heads, dim)?;
        let k = proj("wk", x, [dim, self.hidden_size], Role::Replicated)?;
        let norm = |part: &str| g.weight(w.name(&format!("k_norm.{part}")), &[dim], Role::Replicated);
        let k = g.layer_norm(k, norm("weight")?, Some(norm("bias")?), KEY_NORM_EPS)?;
        let head_weights = proj("weights_proj", x, [heads, self.hidden_size], Role::Router)?;

        let q = g.rope(q, positions, &attention.rope)?;
        let k = g.rope(g.heads(k, 1, dim)?, positions, &attention.rope)?;
        let keys = g.kv_cache(&format!("{state}.index"), &KvSpec::keys_only(1, dim))?;
        let how = Indexer {
            top_k: indexer.top_k,
            scale: (dim as f64).powf(-0.5),
            relu: true,
            per_head: false,
            pool: Pool::Positions,
            head_weights: Some(g.scale(head_weights, (heads as f64).powf(-0.5))?),
            mean_key: None,
        };
        let chosen = g.indexer_topk(q, g.kv_write(keys, k, None)?, &how)?;
        g.publish(CHOICE, chosen.entries);
        Ok(Some(chosen))
    }
}
