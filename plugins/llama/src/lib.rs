//! Dense decoder-only transformers: Llama, Mistral, Qwen2, Qwen3, `SmolLM2`, `SmolLM3`.
//!
//! Pre-norm blocks of grouped-query attention and a SwiGLU feed-forward layer (Touvron et al., 2023).

#![forbid(unsafe_code)]

mod attention;
mod config;

use config::LlamaConfig;
use metrale_plugin_api::export_plugin;
use metrale_plugin_api::prelude::*;

export_plugin!(Llama);

/// A dense decoder.
pub struct Llama {
    config: LlamaConfig,
    weights: Weights,
}

impl ModelLoader for Llama {
    fn open(config: &Config) -> Result<Self> {
        Ok(Self { config: LlamaConfig::read(config)?, weights: Weights::root(&["model"]) })
    }

    fn describe(&self) -> ModelInfo {
        let c = &self.config;
        ModelInfo {
            num_layers: c.num_layers,
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
        let c = &self.config;
        let w = &self.weights.index("layers", index).gguf_scope(&format!("blk.{index}"));

        let norm = norm_weight(g, w.twin("input_layernorm.weight", "attn_norm.weight"), c.hidden_size)?;
        let h = g.rms_norm(x, norm, c.rms_norm_eps)?;
        let x = g.add(x, c.attention(g, w, index, h)?)?;

        let norm =
            norm_weight(g, w.twin("post_attention_layernorm.weight", "ffn_norm.weight"), c.hidden_size)?;
        let h = g.rms_norm(x, norm, c.rms_norm_eps)?;
        g.add(x, c.mlp(g, w, h)?)
    }

    fn norm(&self, g: &Graph, x: Value) -> Result<Value> {
        let c = &self.config;
        let weight = norm_weight(g, self.weights.twin("norm.weight", "output_norm.weight"), c.hidden_size)?;
        g.rms_norm(x, weight, c.rms_norm_eps)
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        let c = &self.config;
        let tied = self.embed_tokens(g)?;
        if c.tie_word_embeddings {
            return g.linear(x, tied);
        }
        let head = Weights::root(&[""]).twin("lm_head.weight", "output.weight");
        let head = g.weight(head, &[c.vocab_size, c.hidden_size], Role::Vocab)?;
        // GGUF has no flag: a file without `output.weight` is tied.
        g.linear(x, if c.is_gguf { g.first_of(&[head, tied])? } else { head })
    }
}

impl Llama {
    fn embed_tokens(&self, g: &Graph) -> Result<Weight> {
        let c = &self.config;
        let name = self.weights.twin("embed_tokens.weight", "token_embd.weight");
        g.weight(name, &[c.vocab_size, c.hidden_size], Role::Vocab)
    }
}

impl LlamaConfig {
    /// SwiGLU: `down(silu(gate(h)) · up(h))`.
    fn mlp(&self, g: &Graph, w: &Weights, h: Value) -> Result<Value> {
        let w = &w.scope("mlp");
        let (inner, hidden) = (self.intermediate_size, self.hidden_size);
        let proj = |x, (name, gguf): (&str, &str), [rows, columns]: [usize; 2], role, bias_role| {
            let weight = g.weight(
                w.twin(&format!("{name}.weight"), &format!("{gguf}.weight")),
                &[rows, columns],
                role,
            )?;
            let bias_name = w.twin(&format!("{name}.bias"), &format!("{gguf}.bias"));
            g.linear_bias(x, weight, bias(g, self.mlp_bias, bias_name, rows, bias_role)?)
        };
        let gate = proj(h, ("gate_proj", "ffn_gate"), [inner, hidden], Role::Column, Role::Column)?;
        let up = proj(h, ("up_proj", "ffn_up"), [inner, hidden], Role::Column, Role::Column)?;
        proj(
            g.mul(g.silu(gate)?, up)?,
            ("down_proj", "ffn_down"),
            [hidden, inner],
            Role::Row,
            Role::Replicated,
        )
    }
}

/// The weight of a norm over `width`.
fn norm_weight(g: &Graph, name: TensorName, width: usize) -> Result<Weight> {
    g.weight(name, &[width], Role::Replicated)
}

/// A bias, where the configuration has one.
fn bias(g: &Graph, present: bool, name: TensorName, rows: usize, role: Role) -> Result<Option<Weight>> {
    if present { g.weight(name, &[rows], role).map(Some) } else { Ok(None) }
}
