//! M2M-100 and NLLB-200: a transformer encoder and decoder for translation (Vaswani et al., 2017; Fan et al., 2020;
//! NLLB team, 2022), dense or with mixtures of experts, pre-norm, with fixed sinusoidal positions and one table for all embeddings.
//!
//! The encoder writes the keys and values of every decoder layer's cross-attention; the decoder reads them.

#![forbid(unsafe_code)]

mod attention;
mod config;

use config::{MoeConfig, NllbConfig, Stack};
use metrale_plugin_api::export_plugin;
use metrale_plugin_api::prelude::*;

export_plugin!(Nllb);

/// Row 0 and 1 of the position table belong to padding; the first token has position 2.
const POSITION_OFFSET: usize = 2;

/// An encoder-decoder.
pub struct Nllb {
    config: NllbConfig,
    weights: Weights,
}

impl ModelLoader for Nllb {
    fn open(config: &Config) -> Result<Self> {
        Ok(Self { config: NllbConfig::read(config)?, weights: Weights::root(&["model"]) })
    }

    fn describe(&self) -> ModelInfo {
        let c = &self.config;
        let info = ModelInfo {
            num_layers: c.decoder.num_layers,
            hidden_size: c.d_model,
            vocab_size: c.vocab_size,
            context_length: c.context_length,
            has_encoder: true,
            ..ModelInfo::default()
        };
        c.translation_facts(info)
    }

    fn embedding(&self, g: &Graph) -> Result<Value> {
        self.embed(g, g.token_ids()?, g.positions()?)
    }

    /// A decoder layer: causal self-attention, attention over the source, feed-forward.
    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
        let (c, stack) = (&self.config, &self.config.decoder);
        let w = &self.weights.index("decoder.layers", index);
        let h = c.layer_norm(g, w, "self_attn_layer_norm", x)?;
        let x = g.add(x, c.self_attention(g, &w.scope("self_attn"), index, h)?)?;

        let h = c.layer_norm(g, w, c.names.cross_attention_norm, x)?;
        let x = g.add(x, c.cross_attention(g, &w.scope(c.names.cross_attention), index, h)?)?;

        let h = c.layer_norm(g, w, c.names.ffn_norm, x)?;
        g.add(x, c.feed_forward(g, w, stack, index, h)?)
    }

    fn norm(&self, g: &Graph, x: Value) -> Result<Value> {
        self.config.layer_norm(g, &self.weights.scope("decoder"), "layer_norm", x)
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        let c = &self.config;
        let head = if c.tie_word_embeddings {
            self.shared(g)?
        } else {
            g.weight("lm_head.weight", &[c.vocab_size, c.d_model], Role::Vocab)?
        };
        g.linear(x, head)
    }

    fn encoder(&self, g: &Graph) -> Result<Value> {
        let (c, stack) = (&self.config, &self.config.encoder);
        let mut x = self.embed(g, g.source_ids()?, g.source_positions()?)?;
        for index in 0..stack.num_layers {
            let w = &self.weights.index("encoder.layers", index);
            let h = c.layer_norm(g, w, "self_attn_layer_norm", x)?;
            x = g.add(x, c.bidirectional_attention(g, &w.scope("self_attn"), h)?)?;

            let h = c.layer_norm(g, w, c.names.ffn_norm, x)?;
            x = g.add(x, c.feed_forward(g, w, stack, index, h)?)?;
        }
        let hidden = c.layer_norm(g, &self.weights.scope("encoder"), "layer_norm", x)?;
        for index in 0..c.decoder.num_layers {
            let w = self.weights.index("decoder.layers", index).scope(c.names.cross_attention);
            c.write_cross_cache(g, &w, index, hidden)?;
        }
        Ok(hidden)
    }
}

impl Nllb {
    /// The one table; a checkpoint stores it under any of its names.
    fn shared(&self, g: &Graph) -> Result<Weight> {
        let c = &self.config;
        let name = self
            .weights
            .name("shared.weight")
            .or("model.encoder.embed_tokens.weight")
            .or("model.decoder.embed_tokens.weight")
            .or("lm_head.weight");
        g.weight(name, &[c.vocab_size, c.d_model], Role::Vocab)
    }

    /// `ids: [rows]` to `[rows, d_model]`, with positions added.
    fn embed(&self, g: &Graph, ids: Value, positions: Value) -> Result<Value> {
        let c = &self.config;
        let x = g.scale(g.embedding(ids, self.shared(g)?)?, c.embed_scale)?;
        g.add(x, g.sinusoid(positions, c.d_model, POSITION_OFFSET)?)
    }
}

impl NllbConfig {
    /// `fc2(relu(fc1(h)))`, or a mixture of such experts.
    fn feed_forward(&self, g: &Graph, w: &Weights, stack: &Stack, layer: usize, h: Value) -> Result<Value> {
        let ffn = self.names.ffn.map(|ffn| w.scope(ffn));
        let (w, ffn_dim) = (ffn.as_ref().unwrap_or(w), stack.ffn_dim);
        if let Some(moe) = self.moe.filter(|_| stack.is_sparse(layer)) {
            return self.experts(g, w, &moe, ffn_dim, h);
        }
        let h = linear(g, w, "fc1", [ffn_dim, self.d_model], Role::Column, h)?;
        linear(g, w, "fc2", [self.d_model, ffn_dim], Role::Row, g.relu(h)?)
    }

    /// The two most likely experts, their weights made to add up to the scale.
    fn experts(&self, g: &Graph, w: &Weights, moe: &MoeConfig, ffn_dim: usize, h: Value) -> Result<Value> {
        let (num_experts, d_model) = (moe.num_experts, self.d_model);
        let router = g.weight(w.name("router.classifier.weight"), &[num_experts, d_model], Role::Router)?;
        let bias = || g.weight(w.name("router.classifier.bias"), &[num_experts], Role::Router);
        let logits = g.linear_bias(h, router, moe.router_bias.then(bias).transpose()?)?;
        let expert = |name: &str, shape: &[usize]| {
            g.expert_weights(w.name(&format!("experts.expert_{{e}}.{name}")), num_experts, shape)
        };
        let experts = Experts::relu(
            (expert("fc1.weight", &[ffn_dim, d_model])?, expert("fc1.bias", &[ffn_dim])?),
            (expert("fc2.weight", &[d_model, ffn_dim])?, expert("fc2.bias", &[d_model])?),
        );
        let router = Router::Softmax { renormalize: true };
        g.moe(h, logits, &experts, &Moe { router, top_k: 2, scale: moe.scale })
    }

    fn layer_norm(&self, g: &Graph, w: &Weights, name: &str, x: Value) -> Result<Value> {
        let part =
            |part: &str| g.weight(w.name(&format!("{name}.{part}")), &[self.d_model], Role::Replicated);
        g.layer_norm(x, part("weight")?, Some(part("bias")?), config::LAYER_NORM_EPS)
    }
}

/// A linear layer with bias. After a row-cut weight the bias is added once, to the sum.
fn linear(g: &Graph, w: &Weights, name: &str, shape: [usize; 2], role: Role, x: Value) -> Result<Value> {
    let weight = g.weight(w.name(&format!("{name}.weight")), &shape, role)?;
    let bias_role = if role == Role::Row { Role::Replicated } else { role };
    let bias = g.weight(w.name(&format!("{name}.bias")), &shape[..1], bias_role)?;
    g.linear_bias(x, weight, Some(bias))
}
