//! GLM-4.5 to GLM-5: a decoder of pre-norm blocks, most of which end in a mixture of experts, and multi-token-prediction
//! layers after the last one. Blocks attend with grouped queries (`glm4_moe`), through a latent (`glm4_moe_lite`), or through a
//! latent to the tokens that an indexer chooses (`glm_moe_dsa`).

#![forbid(unsafe_code)]

mod config;
mod grouped_query;
mod indexer;
mod latent;
mod moe;

use config::{AttentionConfig, GlmConfig};
use metrale_plugin_api::export_plugin;
use metrale_plugin_api::prelude::*;

export_plugin!(GlmMtp);

/// A decoder with multi-token prediction.
pub struct GlmMtp {
    config: GlmConfig,
    weights: Weights,
}

impl ModelLoader for GlmMtp {
    fn open(config: &Config) -> Result<Self> {
        Ok(Self { config: GlmConfig::read(config)?, weights: Weights::root(&["model"]) })
    }

    fn describe(&self) -> ModelInfo {
        let c = &self.config;
        ModelInfo {
            num_layers: c.is_moe.len(),
            hidden_size: c.hidden_size,
            vocab_size: c.vocab_size,
            context_length: c.context_length,
            mtp_layers: c.mtp_layers,
            has_mtp_head: true,
            ..ModelInfo::default()
        }
    }

    fn embedding(&self, g: &Graph) -> Result<Value> {
        g.embedding(g.token_ids()?, self.embed_tokens(g)?)
    }

    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
        self.block(g, index, &format!("layers.{index}"), x)
    }

    fn norm(&self, g: &Graph, x: Value) -> Result<Value> {
        self.config.rms_norm(g, self.weights.name("norm.weight"), self.config.hidden_size, x)
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        g.linear(x, self.head(g)?)
    }

    /// One block over the trunk's hidden state and the embedding of the token after it. Its tensors are those of a layer after
    /// the last one of the trunk.
    fn mtp(&self, g: &Graph, depth: usize, hidden: Value, next_ids: Value) -> Result<Mtp> {
        let c = &self.config;
        let index = c.is_moe.len() + depth;
        let w = &self.weights.index("layers", index);
        let own = g.weight(w.name("embed_tokens.weight"), &[c.vocab_size, c.hidden_size], Role::Vocab)?;
        let table = g.first_of(&[own, self.embed_tokens(g)?])?;
        let e = c.rms_norm(g, w.name("enorm.weight"), c.hidden_size, g.embedding(next_ids, table)?)?;
        let h = c.rms_norm(g, w.name("hnorm.weight"), c.hidden_size, hidden)?;

        let eh_proj =
            g.weight(w.name("eh_proj.weight"), &[c.hidden_size, 2 * c.hidden_size], Role::Replicated)?;
        let z = g.linear(g.concat(&[e, h], 1)?, eh_proj)?;
        let y = self.block(g, index, &format!("mtp.{depth}"), z)?;
        let y = c.rms_norm(g, w.name("shared_head.norm.weight"), c.hidden_size, y)?;
        Ok(Mtp { recycle: y, head_in: y })
    }

    /// A head of its own, where the checkpoint has one.
    fn mtp_head(&self, g: &Graph, depth: usize, x: Value) -> Result<Value> {
        let c = &self.config;
        let w = self.weights.index("layers", c.is_moe.len() + depth);
        let own = g.weight(w.name("shared_head.head.weight"), &[c.vocab_size, c.hidden_size], Role::Vocab)?;
        g.linear(x, g.first_of(&[own, self.head(g)?])?)
    }
}

impl GlmMtp {
    fn embed_tokens(&self, g: &Graph) -> Result<Weight> {
        let c = &self.config;
        g.weight(self.weights.name("embed_tokens.weight"), &[c.vocab_size, c.hidden_size], Role::Vocab)
    }

    fn head(&self, g: &Graph) -> Result<Weight> {
        let c = &self.config;
        if c.tie_word_embeddings {
            self.embed_tokens(g)
        } else {
            g.weight("lm_head.weight", &[c.vocab_size, c.hidden_size], Role::Vocab)
        }
    }

    /// A pre-norm block: attention, then a feed-forward layer. `state` names its caches. Blocks after the trunk's last are
    /// those of multi-token prediction: with experts, and with an indexer where the trunk has them.
    fn block(&self, g: &Graph, index: usize, state: &str, x: Value) -> Result<Value> {
        let c = &self.config;
        let w = &self.weights.index("layers", index);
        let h = c.rms_norm(g, w.name("input_layernorm.weight"), c.hidden_size, x)?;
        let attn = &w.scope("self_attn");
        let y = match &c.attention {
            AttentionConfig::GroupedQuery(attention) => c.grouped_query(g, attn, state, attention, h)?,
            AttentionConfig::Latent(attention) => {
                let indexer = attention.indexer.as_ref();
                let chooses = indexer.is_some_and(|i| i.is_full.get(index).copied().unwrap_or(true));
                c.latent(g, attn, (state, chooses), attention, h)?
            }
        };
        let x = g.add(x, y)?;

        let h = c.rms_norm(g, w.name("post_attention_layernorm.weight"), c.hidden_size, x)?;
        let w = &w.scope("mlp");
        let is_moe = c.is_moe.get(index).copied().unwrap_or(true);
        g.add(x, if is_moe { c.moe(g, w, h)? } else { c.swiglu(g, w, c.intermediate_size, h)? })
    }
}
