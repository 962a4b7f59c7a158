//! Sparse attention of Qwen4-Exp: an indexer chooses the blocks of earlier tokens that a row sees.

use metrale_plugin_api::prelude::*;

use crate::config::QwenConfig;

/// Heads and budget of the indexer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexerConfig {
    heads: usize,
    head_dim: usize,
    /// Tokens per block.
    block: usize,
    /// Blocks that a row sees besides the one that is not complete.
    num_blocks: usize,
}

impl IndexerConfig {
    pub(crate) fn read(config: &Config) -> Result<Option<Self>> {
        if !config.has("indexer_n_heads") {
            return Ok(None);
        }
        let (budget, block) = (config.dim("indexer_budget")?, config.dim("indexer_compress_ratio")?);
        if config.dim_or("indexer_kv_heads", 1)? != 1 || !budget.is_multiple_of(block) {
            let message =
                format!("an indexer has one key head and a budget ({budget}) of whole blocks ({block})");
            return Err(PluginError::new(message));
        }
        let (heads, head_dim) = (config.dim("indexer_n_heads")?, config.dim("indexer_head_dim")?);
        Ok(Some(Self { heads, head_dim, block, num_blocks: budget / block }))
    }
}

impl QwenConfig {
    /// The blocks that the rows of `x: [T, hidden]` see: the best by `Σₕ relu(qₕ·k)/√d`, `k` a block's mean key.
    pub(crate) fn select(&self, g: &Graph, w: &Weights, state: &str, x: Value) -> Result<Option<Selection>> {
        let Some(IndexerConfig { heads, head_dim: dim, block, num_blocks }) = self.indexer else {
            return Ok(None);
        };
        let qk = g.project(x, w, "index_qk_proj.weight", (heads + 1) * dim, Role::Replicated)?;
        let [q, k] = g.split(qk, 1, [heads * dim, dim])?;
        let q = self.rms_norm(g, w, "q_layernorm", g.heads(q, heads, dim)?)?;
        let q = g.rope(q, self.positions(g)?, &self.rope)?;

        let spec = KvSpec { v_is_k_prefix: true, ..KvSpec::new(1, dim) };
        let keys = g.kv_cache(&format!("{state}.index"), &spec)?;
        let keys = g.kv_write(keys, g.heads(k, 1, dim)?, None)?;
        let norm = g.weight(w.name("k_layernorm.weight"), &[dim], Role::Replicated)?;
        let inv_freq = Some(g.constant(&self.rope.inv_freq)?);
        let how = Indexer {
            top_k: num_blocks,
            scale: (dim as f64).powf(-0.5),
            relu: true,
            per_head: false,
            pool: Pool::MeanKeys { block },
            head_weights: None,
            mean_key: Some(MeanKey { norm, eps: self.rms_norm_eps, inv_freq }),
        };
        g.indexer_topk(q, keys, &how).map(Some)
    }
}
