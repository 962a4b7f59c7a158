//! A small Llama-like decoder: the embedding, layers of attention and SwiGLU, a norm, the output head.
//!
//! Nothing here computes. Each method adds ops to a graph, once, when the model is loaded; metrale runs that graph for
//! prefill, decode and batches of any mix. `T` in a shape is the number of rows in a step and is never known here.

#![forbid(unsafe_code)]

mod config;

use config::ModelConfig;
use metrale_plugin_api::export_plugin;
use metrale_plugin_api::prelude::*;

// The one symbol of the library. Also makes `plugin_module()`, which the tests use.
export_plugin!(Model);

/// One model.
pub struct Model {
    config: ModelConfig,
    /// Where its tensors are: names below start with `model.`
    weights: Weights,
}

impl ModelLoader for Model {
    /// Called once per model, with config.json. No files, no devices.
    fn open(config: &Config) -> Result<Self> {
        Ok(Self {
            config: ModelConfig::read(config)?,
            weights: Weights::root(&["model"]),
        })
    }

    /// What metrale plans memory with.
    fn describe(&self) -> ModelInfo {
        ModelInfo {
            num_layers: self.config.num_layers,
            hidden_size: self.config.hidden_size,
            vocab_size: self.config.vocab_size,
            context_length: self.config.context_length,
            ..ModelInfo::default()
        }
    }

    /// Token ids, `[T]`, to the residual stream, `[T, hidden]`.
    fn embedding(&self, g: &Graph) -> Result<Value> {
        let c = &self.config;
        // A weight is asked for by name and shape, `[out, in]`, and never seen: its format and place are metrale's
        // business. The role says how to cut it over several devices.
        let name = self.weights.name("embed_tokens.weight"); // model.embed_tokens.weight
        g.embedding(
            g.token_ids()?,
            g.weight(name, &[c.vocab_size, c.hidden_size], Role::Vocab)?,
        )
    }

    /// Layer `index`: `[T, hidden]` to `[T, hidden]`.
    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
        let w = &self.weights.index("layers", index); // model.layers.<index>.…
        let h = self.rms_norm(g, w.name("input_layernorm.weight"), x)?;
        let x = g.add(x, self.attention(g, &w.scope("self_attn"), index, h)?)?;

        let h = self.rms_norm(g, w.name("post_attention_layernorm.weight"), x)?;
        g.add(x, self.mlp(g, &w.scope("mlp"), h)?)
    }

    /// What comes after the last layer.
    fn norm(&self, g: &Graph, x: Value) -> Result<Value> {
        self.rms_norm(g, self.weights.name("norm.weight"), x)
    }

    /// `[T, hidden]` to logits, `[T, vocab]`. Runs only for the rows that a token is chosen for.
    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        let c = &self.config;
        g.linear(
            x,
            g.weight(
                "lm_head.weight",
                &[c.vocab_size, c.hidden_size],
                Role::Vocab,
            )?,
        )
    }
}

impl Model {
    fn rms_norm(&self, g: &Graph, name: TensorName, x: Value) -> Result<Value> {
        let weight = g.weight(name, &[self.config.hidden_size], Role::Replicated)?;
        g.rms_norm(x, weight, self.config.rms_norm_eps)
    }

    /// Grouped-query attention with rotary positions.
    fn attention(&self, g: &Graph, w: &Weights, layer: usize, h: Value) -> Result<Value> {
        let c = &self.config;
        // Column: the outputs are cut by heads; Row, below, cuts the inputs, and metrale adds the sum over devices.
        let project = |name: &str, heads: usize| -> Result<Value> {
            let weight = g.weight(
                w.name(name),
                &[heads * c.head_dim, c.hidden_size],
                Role::Column,
            )?;
            g.heads(g.linear(h, weight)?, heads, c.head_dim) // [T, heads, head_dim]
        };
        let (q, k) = (
            project("q_proj.weight", c.num_heads)?,
            project("k_proj.weight", c.num_kv_heads)?,
        );
        let v = project("v_proj.weight", c.num_kv_heads)?;

        let positions = g.positions()?;
        let q = g.rope(q, positions, &c.rope)?;
        let k = g.rope(k, positions, &c.rope)?;

        // The cache belongs to metrale. The name is stable: snapshots and other entry points find it by that name.
        let cache = g.kv_cache(
            &format!("layers.{layer}.self"),
            &KvSpec::new(c.num_kv_heads, c.head_dim),
        )?;
        let cache = g.kv_write(cache, k, Some(v))?;
        let scale = (c.head_dim as f64).powf(-0.5);
        let y = g.attention(q, cache, &Attention::causal(scale))?; // [T, heads, head_dim]

        let out = g.weight(
            w.name("o_proj.weight"),
            &[c.hidden_size, c.num_heads * c.head_dim],
            Role::Row,
        )?;
        g.linear(g.flatten(y)?, out)
    }

    /// SwiGLU: `down(silu(gate(h)) · up(h))`.
    fn mlp(&self, g: &Graph, w: &Weights, h: Value) -> Result<Value> {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let gate = g.weight(w.name("gate_proj.weight"), &[inner, hidden], Role::Column)?;
        let up = g.weight(w.name("up_proj.weight"), &[inner, hidden], Role::Column)?;
        let down = g.weight(w.name("down_proj.weight"), &[hidden, inner], Role::Row)?;
        let gated = g.mul(g.silu(g.linear(h, gate)?)?, g.linear(h, up)?)?; // [T, inner]
        g.linear(gated, down)
    }
}
