//! What config.json says, with each model type's own defaults.

use metrale_plugin_api::prelude::*;

use crate::hyper::HyperConnections;
use crate::ngram::NgramConfig;
use crate::sparse::IndexerConfig;

/// How a layer mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerKind {
    FullAttention,
    LinearAttention,
}

/// Two names for layers of full attention: an indexer chooses what they see where the model has one.
const KINDS: [(&str, LayerKind); 3] = [
    ("full_attention", LayerKind::FullAttention),
    ("linear_attention", LayerKind::LinearAttention),
    ("indexed_attention", LayerKind::FullAttention),
];

/// A hybrid decoder, fully decided.
#[derive(Clone, Debug)]
pub(crate) struct QwenConfig {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) context_length: usize,
    pub(crate) rms_norm_eps: f64,
    pub(crate) tie_word_embeddings: bool,
    pub(crate) layers: Vec<LayerKind>,
    pub(crate) mtp_layers: usize,
    pub(crate) vision: Option<VisionTower>,
    // Gated attention
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rope: Rope,
    // Gated delta net
    /// Projections are interleaved by key head (Qwen3-Next).
    pub(crate) interleaved: bool,
    /// The output gate is a sigmoid instead of SiLU.
    pub(crate) sigmoid_gate: bool,
    pub(crate) linear_num_key_heads: usize,
    pub(crate) linear_num_value_heads: usize,
    pub(crate) linear_key_head_dim: usize,
    pub(crate) linear_value_head_dim: usize,
    pub(crate) linear_conv_kernel_dim: usize,
    // Feed-forward layers
    pub(crate) intermediate_size: usize,
    pub(crate) num_experts: usize,
    pub(crate) num_experts_per_tok: usize,
    pub(crate) moe_intermediate_size: usize,
    pub(crate) shared_expert_intermediate_size: usize,
    pub(crate) norm_topk_prob: bool,
    decoder_sparse_step: usize,
    mlp_only_layers: Vec<usize>,
    // Qwen4-Exp
    pub(crate) hyper: Option<HyperConnections>,
    pub(crate) indexer: Option<IndexerConfig>,
    pub(crate) ngram: Option<NgramConfig>,
}

impl QwenConfig {
    /// Reads the decoder from `text_config`, or from the top level of a text-only checkpoint.
    pub(crate) fn read(top: &Config) -> Result<Self> {
        let section = top.section("text_config")?;
        let config = section.as_ref().unwrap_or(top);
        let model_type: Option<String> = config.optional("model_type")?;
        let model_type = model_type.map_or_else(|| top.required("model_type"), Ok)?;
        let model_type = model_type.strip_suffix("_text").unwrap_or(model_type.as_str());
        let (next, exp) = (model_type == "qwen3_next", model_type == "qwen4_exp");
        let (experts, per_token) = match model_type {
            "qwen3_next" | "qwen4_exp" => (512, 10),
            "qwen3_5_moe" => (256, 8),
            _ => (0, 8),
        };
        if config.flag("attention_bias")? {
            return Err(PluginError::new("`attention_bias` is true; this family has no biases"));
        }
        let hidden_size = config.dim("hidden_size")?;
        let interval = config.dim_or("full_attention_interval", 4)?;
        let by_interval = |layer: usize| KINDS[usize::from(!(layer + 1).is_multiple_of(interval))].1;
        let head_dim = config.dim_or("head_dim", 256)?;
        let rope = Rope::partial(config, head_dim, 0.25)?;
        let this = Self {
            vocab_size: config.dim("vocab_size")?,
            hidden_size,
            context_length: config.dim_or("max_position_embeddings", 32_768)?,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            tie_word_embeddings: top.flag("tie_word_embeddings")? || config.flag("tie_word_embeddings")?,
            layers: config.layer_types(&KINDS, by_interval)?,
            // Qwen3-Next has one depth and no key for it; how Qwen4-Exp drafts is not published.
            mtp_layers: if exp { 0 } else { config.optional("mtp_num_hidden_layers")?.unwrap_or(1) },
            // The indexer of Qwen4-Exp counts tokens, which are not positions once there are images.
            vision: if exp { None } else { VisionTower::read(top, hidden_size)? },
            num_heads: config.dim("num_attention_heads")?,
            num_kv_heads: config.dim("num_key_value_heads")?,
            head_dim,
            rope: if top.has("vision_config") { rope.three_streams([11, 11, 10]) } else { rope.one_stream() },
            interleaved: next,
            sigmoid_gate: exp && config.optional::<String>("output_gate_type")?.as_deref() == Some("sigmoid"),
            linear_num_key_heads: config.dim_or("linear_num_key_heads", 16)?,
            linear_num_value_heads: config.dim_or("linear_num_value_heads", 32)?,
            linear_key_head_dim: config.dim_or("linear_key_head_dim", 128)?,
            linear_value_head_dim: config.dim_or("linear_value_head_dim", 128)?,
            linear_conv_kernel_dim: config.dim_or("linear_conv_kernel_dim", 4)?,
            intermediate_size: config.dim_or("intermediate_size", 5120)?,
            num_experts: config.optional("num_experts")?.unwrap_or(experts),
            num_experts_per_tok: config.dim_or("num_experts_per_tok", per_token)?,
            moe_intermediate_size: config.dim_or("moe_intermediate_size", 512)?,
            shared_expert_intermediate_size: config.dim_or("shared_expert_intermediate_size", 512)?,
            norm_topk_prob: model_type == "qwen3_5_moe" || config.optional("norm_topk_prob")?.unwrap_or(true),
            decoder_sparse_step: config.dim_or("decoder_sparse_step", 1)?,
            mlp_only_layers: config.optional("mlp_only_layers")?.unwrap_or_default(),
            hyper: if exp { Some(HyperConnections::read(config)?) } else { None },
            indexer: if exp { IndexerConfig::read(config)? } else { None },
            ngram: if exp { NgramConfig::read(config)? } else { None },
        };
        let (keys, values) = (this.linear_num_key_heads, this.linear_num_value_heads);
        if !values.is_multiple_of(keys) {
            return Err(PluginError::new(format!(
                "{values} linear value heads over {keys} key heads: expected a multiple"
            )));
        }
        Ok(this)
    }

    /// Whether a layer of the trunk ends in a mixture of experts.
    pub(crate) fn is_moe(&self, layer: usize) -> bool {
        self.num_experts > 0
            && !self.mlp_only_layers.contains(&layer)
            && (layer + 1).is_multiple_of(self.decoder_sparse_step)
    }

    /// The norm of this family: weights are stored around zero.
    pub(crate) fn rms_norm(&self, g: &Graph, w: &Weights, name: &str, x: Value) -> Result<Value> {
        let width = g.shape(x)?.last().copied().flatten().unwrap_or(self.hidden_size);
        let weight = g.weight(w.name(&format!("{name}.weight")), &[width], Role::Replicated)?;
        g.rms_norm_zero_centered(x, weight, self.rms_norm_eps)
    }
}
