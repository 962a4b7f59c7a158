//! Qwen3-Next, Qwen3.5 to 3.8 and Qwen4-Exp: three layers of gated delta net, then one of gated attention, each followed by
//! a mixture of experts or a dense feed-forward layer; a multi-token-prediction head, and a vision tower.

#![forbid(unsafe_code)]

mod attention;
mod config;
mod delta_net;
mod hyper;
mod moe;
mod ngram;
mod sparse;

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
        let weights = Weights::root(&["model", "model.language_model", "language_model.model"]);
        Ok(Self { config: QwenConfig::read(config)?, weights })
    }

    fn describe(&self) -> ModelInfo {
        let c = &self.config;
        let info = ModelInfo {
            num_layers: c.layers.len(),
            hidden_size: c.hidden_size,
            vocab_size: c.vocab_size,
            context_length: c.context_length,
            mtp_layers: c.mtp_layers,
            ..ModelInfo::default()
        };
        c.vision.as_ref().map_or(info.clone(), |tower| tower.describe(info))
    }

    fn embedding(&self, g: &Graph) -> Result<Value> {
        let c = &self.config;
        let x = g.embedding(g.token_ids()?, self.embed_tokens(g)?)?;
        match c.hyper {
            Some(hc) => g.flatten(c.to_streams(g, hc.streams, x)?),
            None if c.vision.is_some() => g.merge_image_rows(x, c.hidden_size),
            None => Ok(x),
        }
    }

    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
        let (c, w, state) = (&self.config, &self.weights.index("layers", index), format!("layers.{index}"));
        let (mixer, is_moe) = (c.layers[index], c.is_moe(index));
        let Some(hc) = c.hyper else { return self.block(g, w, &state, (mixer, is_moe), x) };

        let x = c.ngram_embedding(g, w, (index, hc.streams), x)?;
        let mix = |h| self.mix(g, w, &state, mixer, h);
        let x = c.hyper_connect(g, &w.scope("attn_hyper_connection"), hc, x, mix)?;
        c.hyper_connect(g, &w.scope("mlp_hyper_connection"), hc, x, |h| self.feed_forward(g, w, is_moe, h))
    }

    fn norm(&self, g: &Graph, x: Value) -> Result<Value> {
        let (c, w) = (&self.config, &self.weights);
        match c.hyper {
            Some(hc) => {
                c.mix_streams(g, &w.scope("hyper_connection_mixer"), hc, x).map(|(mixture, _)| mixture)
            }
            None => c.rms_norm(g, w, "norm", x),
        }
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        let c = &self.config;
        let head = if c.tie_word_embeddings {
            self.embed_tokens(g)?
        } else {
            let name = TensorName::from("lm_head.weight").or("language_model.lm_head.weight");
            g.weight(name, &[c.vocab_size, c.hidden_size], Role::Vocab)?
        };
        g.linear(x, head)
    }

    /// One full-attention layer over the trunk's hidden state and the embedding of the token after it.
    fn mtp(&self, g: &Graph, depth: usize, hidden: Value, next_ids: Value) -> Result<Mtp> {
        let c = &self.config;
        let w = &Weights::root(&["mtp"]);
        let e = c.rms_norm(g, w, "pre_fc_norm_embedding", g.embedding(next_ids, self.embed_tokens(g)?)?)?;
        let h = c.rms_norm(g, w, "pre_fc_norm_hidden", hidden)?;

        let z = g.project(g.concat(&[e, h], 1)?, w, "fc.weight", c.hidden_size, Role::Replicated)?;
        let kind = (LayerKind::FullAttention, c.num_experts > 0);
        let y = self.block(g, &w.index("layers", depth), &format!("mtp.{depth}"), kind, z)?;
        let y = c.rms_norm(g, w, "norm", y)?;
        Ok(Mtp { recycle: y, head_in: y })
    }

    fn vision_tower(&self, g: &Graph) -> Result<Value> {
        let tower = self.config.vision.as_ref().ok_or_else(|| g.unsupported("vision"))?;
        tower.rows(g, &Weights::root(&["model.visual", "visual"]))
    }
}

impl Qwen3Ssm {
    fn embed_tokens(&self, g: &Graph) -> Result<Weight> {
        let c = &self.config;
        g.weight(self.weights.name("embed_tokens.weight"), &[c.vocab_size, c.hidden_size], Role::Vocab)
    }

    /// One decoder layer: mixer and feed-forward, each behind a norm and added to the residual.
    fn block(
        &self,
        g: &Graph,
        w: &Weights,
        state: &str,
        (mixer, is_moe): (LayerKind, bool),
        x: Value,
    ) -> Result<Value> {
        let c = &self.config;
        let x = g.add(x, self.mix(g, w, state, mixer, c.rms_norm(g, w, "input_layernorm", x)?)?)?;
        g.add(x, self.feed_forward(g, w, is_moe, c.rms_norm(g, w, "post_attention_layernorm", x)?)?)
    }

    fn mix(&self, g: &Graph, w: &Weights, state: &str, mixer: LayerKind, h: Value) -> Result<Value> {
        match mixer {
            LayerKind::FullAttention => self.config.attention(g, &w.scope("self_attn"), state, h),
            LayerKind::LinearAttention => self.config.delta_net(g, &w.scope("linear_attn"), state, h),
        }
    }

    fn feed_forward(&self, g: &Graph, w: &Weights, is_moe: bool, h: Value) -> Result<Value> {
        let (c, w) = (&self.config, &w.scope("mlp"));
        if is_moe { c.moe(g, w, h) } else { g.swiglu(h, w, c.intermediate_size) }
    }
}
