//! Qwen3-Next: three layers of gated delta net, then one of gated attention; every layer followed by a mixture of experts
//! (or a dense feed-forward layer), and a multi-token-prediction head.

#![forbid(unsafe_code)]

mod attention;
mod config;
mod delta_net;
mod moe;

use config::{LayerKind, QwenConfig};
use metrale_plugin_api::export_plugin;
use metrale_plugin_api::prelude::*;

export_plugin!(Qwen3Ssm);

/// A hybrid decoder.
pub struct Qwen3Ssm {
    config: QwenConfig,
    weights: Weights,
}

impl ModelLoader for Qwen3Ssm {
    fn open(config: &Config) -> Result<Self> {
        Ok(Self { config: QwenConfig::read(config)?, weights: Weights::root(&["model"]) })
    }

    fn describe(&self) -> ModelInfo {
        let c = &self.config;
        ModelInfo {
            num_layers: c.layers.len(),
            hidden_size: c.hidden_size,
            vocab_size: c.vocab_size,
            context_length: c.context_length,
            mtp_layers: c.mtp_layers,
            ..ModelInfo::default()
        }
    }

    fn embedding(&self, g: &Graph) -> Result<Value> {
        g.embedding(g.token_ids()?, self.embed_tokens(g)?)
    }

    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
        let (mixer, is_moe) = (self.config.layers[index], self.config.is_moe(index));
        self.block(g, &self.weights.index("layers", index), &format!("layers.{index}"), (mixer, is_moe), x)
    }

    fn norm(&self, g: &Graph, x: Value) -> Result<Value> {
        self.config.rms_norm(g, &self.weights, "norm", x)
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        let c = &self.config;
        let head = if c.tie_word_embeddings {
            self.embed_tokens(g)?
        } else {
            g.weight("lm_head.weight", &[c.vocab_size, c.hidden_size], Role::Vocab)?
        };
        g.linear(x, head)
    }

    /// One full-attention layer over the trunk's hidden state and the embedding of the token after it.
    fn mtp(&self, g: &Graph, depth: usize, hidden: Value, next_ids: Value) -> Result<Mtp> {
        let c = &self.config;
        let w = &Weights::root(&["mtp"]);
        let e = c.rms_norm(g, w, "pre_fc_norm_embedding", g.embedding(next_ids, self.embed_tokens(g)?)?)?;
        let h = c.rms_norm(g, w, "pre_fc_norm_hidden", hidden)?;

        let fc = g.weight(w.name("fc.weight"), &[c.hidden_size, 2 * c.hidden_size], Role::Replicated)?;
        let z = g.linear(g.concat(&[e, h], 1)?, fc)?;
        let kind = (LayerKind::FullAttention, c.num_experts > 0);
        let y = self.block(g, &w.index("layers", depth), &format!("mtp.{depth}"), kind, z)?;
        let y = c.rms_norm(g, w, "norm", y)?;
        Ok(Mtp { recycle: y, head_in: y })
    }
}

impl Qwen3Ssm {
    fn embed_tokens(&self, g: &Graph) -> Result<Weight> {
        let c = &self.config;
        g.weight(self.weights.name("embed_tokens.weight"), &[c.vocab_size, c.hidden_size], Role::Vocab)
    }

    /// A pre-norm block: mixer, then feed-forward layer. `state` names its caches.
    fn block(
        &self,
        g: &Graph,
        w: &Weights,
        state: &str,
        (mixer, is_moe): (LayerKind, bool),
        x: Value,
    ) -> Result<Value> {
        let c = &self.config;
        let h = c.rms_norm(g, w, "input_layernorm", x)?;
        let y = match mixer {
            LayerKind::FullAttention => c.attention(g, &w.scope("self_attn"), state, h)?,
            LayerKind::LinearAttention => c.delta_net(g, &w.scope("linear_attn"), state, h)?,
        };
        let x = g.add(x, y)?;

        let h = c.rms_norm(g, w, "post_attention_layernorm", x)?;
        let w = &w.scope("mlp");
        g.add(x, if is_moe { c.moe(g, w, h)? } else { c.swiglu(g, w, c.intermediate_size, h)? })
    }
}
