//! MiniMax-M2: grouped-query attention with queries and keys normed over all heads together, and a mixture of many small
//! experts in every layer. MiniMax-M3's text decoder: norms per head, a shared expert, and attention over chosen blocks.

#![forbid(unsafe_code)]

mod attention;
mod config;
mod moe;

use config::MiniMaxConfig;
use metrale_plugin_api::export_plugin;
use metrale_plugin_api::prelude::*;

export_plugin!(MiniMaxM2);

/// A decoder.
pub struct MiniMaxM2 {
    config: MiniMaxConfig,
    /// Where `model` and `lm_head` are.
    root: Weights,
}

impl ModelLoader for MiniMaxM2 {
    fn open(config: &Config) -> Result<Self> {
        let config = MiniMaxConfig::read(config)?;
        Ok(Self { root: Weights::root(config.prefixes), config })
    }

    fn describe(&self) -> ModelInfo {
        let c = &self.config;
        ModelInfo {
            num_layers: c.layers.len(),
            hidden_size: c.hidden_size,
            vocab_size: c.vocab_size,
            context_length: c.context_length,
            ..ModelInfo::default()
        }
    }

    fn embedding(&self, g: &Graph) -> Result<Value> {
        g.embedding(g.token_ids()?, self.embed_tokens(g)?)
    }

    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
        let (c, layer) = (&self.config, self.config.layers[index]);
        let w = &self.model().index("layers", index).gguf_scope(&format!("blk.{index}"));
        let norm = |name: &str, gguf: &str, x: Value| {
            c.rms_norm(g, w.twin(name, gguf), c.hidden_size, Role::Replicated, x)
        };
        let h = norm("input_layernorm.weight", "attn_norm.weight", x)?;
        let indexer = c.indexer.as_ref().filter(|_| layer.is_sparse);
        let x = g.add(x, c.attention(g, &w.scope("self_attn"), &format!("layers.{index}"), indexer, h)?)?;

        let h = norm("post_attention_layernorm.weight", "ffn_norm.weight", x)?;
        g.add(
            x,
            if layer.is_moe {
                c.moe(g, &w.scope("block_sparse_moe"), h)?
            } else {
                c.mlp(g, &w.scope("mlp"), c.dense_intermediate_size, h)?
            },
        )
    }

    fn norm(&self, g: &Graph, x: Value) -> Result<Value> {
        let (c, name) = (&self.config, self.model().twin("norm.weight", "output_norm.weight"));
        c.rms_norm(g, name, c.hidden_size, Role::Replicated, x)
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        let c = &self.config;
        if c.tie_word_embeddings {
            return g.linear(x, self.embed_tokens(g)?);
        }
        let name = self.root.twin("lm_head.weight", "output.weight");
        g.linear(x, g.weight(name, &[c.vocab_size, c.hidden_size], Role::Vocab)?)
    }
}

impl MiniMaxM2 {
    fn model(&self) -> Weights {
        self.root.scope("model")
    }

    fn embed_tokens(&self, g: &Graph) -> Result<Weight> {
        let c = &self.config;
        let name = self.model().twin("embed_tokens.weight", "token_embd.weight");
        g.weight(name, &[c.vocab_size, c.hidden_size], Role::Vocab)
    }
}
