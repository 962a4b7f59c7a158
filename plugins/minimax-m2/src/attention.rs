//! Grouped-query attention with partial rope; in MiniMax-M3's sparse layers, over the blocks that an indexer chooses.

use metrale_plugin_api::prelude::*;

use crate::config::{BlockIndexer, MiniMaxConfig, QkNorm};

impl MiniMaxConfig {
    /// `x: [T, hidden]` after the input norm; returns the same shape.
    pub(crate) fn attention(
        &self,
        g: &Graph,
        w: &Weights,
        state: &str,
        indexer: Option<&BlockIndexer>,
        x: Value,
    ) -> Result<Value> {
        let (heads, kv_heads, dim) = (self.num_heads, self.num_kv_heads, self.head_dim);
        let proj = |name: &str, gguf: &str, heads: usize| {
            let name = w.twin(&format!("{name}.weight"), &format!("{gguf}.weight"));
            g.linear(x, g.weight(name, &[heads * dim, self.hidden_size], Role::Column)?)
        };
        let q = self.qk_norm(g, w, ("q_norm", "attn_q_norm"), heads, proj("q_proj", "attn_q", heads)?)?;
        let k =
            self.qk_norm(g, w, ("k_norm", "attn_k_norm"), kv_heads, proj("k_proj", "attn_k", kv_heads)?)?;
        let v = g.heads(proj("v_proj", "attn_v", kv_heads)?, kv_heads, dim)?;

        let positions = g.positions()?;
        let q = g.rope(q, positions, &self.rope)?;
        let k = g.rope(k, positions, &self.rope)?;
        let select = indexer.map(|indexer| self.choose_blocks(g, w, state, indexer, x)).transpose()?;

        let cache = g.kv_cache(&format!("{state}.self"), &KvSpec::new(kv_heads, dim))?;
        let cache = g.kv_write(cache, k, Some(v))?;
        let how = Attention { select, ..Attention::causal((dim as f64).powf(-0.5)) };
        let y = g.flatten(g.attention(q, cache, &how)?)?; // [T, heads · dim]
        let o_proj = w.twin("o_proj.weight", "attn_output.weight");
        g.linear(y, g.weight(o_proj, &[self.hidden_size, heads * dim], Role::Row)?)
    }

    /// Queries or keys `[T, heads · dim]`, normed, as `[T, heads, dim]`.
    fn qk_norm(
        &self,
        g: &Graph,
        w: &Weights,
        (name, gguf): (&str, &str),
        heads: usize,
        x: Value,
    ) -> Result<Value> {
        let dim = self.head_dim;
        let name = w.twin(&format!("{name}.weight"), &format!("{gguf}.weight"));
        match self.qk_norm {
            QkNorm::None => g.heads(x, heads, dim),
            QkNorm::Flattened => g.heads(self.rms_norm(g, name, heads * dim, Role::Column, x)?, heads, dim),
            QkNorm::PerHead => self.rms_norm(g, name, dim, Role::Replicated, g.heads(x, heads, dim)?),
        }
    }

    /// Blocks of keys by their best score, for each index head; head `g` chooses for KV head `g`.
    fn choose_blocks(
        &self,
        g: &Graph,
        w: &Weights,
        state: &str,
        indexer: &BlockIndexer,
        x: Value,
    ) -> Result<Selection> {
        let (heads, dim, positions) = (indexer.num_heads, indexer.head_dim, g.positions()?);
        let index = |name: &str, heads: usize| -> Result<Value> {
            let weight = g.weight(
                w.name(&format!("index_{name}_proj.weight")),
                &[heads * dim, self.hidden_size],
                Role::Replicated,
            )?;
            let y = g.heads(g.linear(x, weight)?, heads, dim)?;
            let norm = w.name(&format!("index_{name}_norm.weight"));
            g.rope(self.rms_norm(g, norm, dim, Role::Replicated, y)?, positions, &self.rope)
        };
        let (q, k) = (index("q", heads)?, index("k", 1)?);
        let keys = g.kv_cache(&format!("{state}.index"), &KvSpec::keys_only(1, dim))?;
        let keys = g.kv_write(keys, k, None)?;
        let (block, local_blocks) = (indexer.block_size, indexer.local_blocks);
        let how = Indexer {
            top_k: indexer.top_blocks,
            scale: 1.0,
            relu: false,
            per_head: true,
            pool: Pool::MaxScores { block, local_blocks },
            head_weights: None,
            mean_key: None,
        };
        g.indexer_topk(q, keys, &how)
    }
}
