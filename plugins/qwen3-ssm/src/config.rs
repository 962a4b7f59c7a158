//! What config.json says.

use metrale_plugin_api::prelude::*;

/// How a layer mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerKind {
    FullAttention,
    LinearAttention,
}

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
    // Gated attention
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rope: Rope,
    // Gated delta net
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
}

impl QwenConfig {
    pub(crate) fn read(config: &Config) -> Result<Self> {
        let num_layers = config.dim("num_hidden_layers")?;
        let head_dim = config.dim_or("head_dim", 256)?;
        let rope = config.section("rope_parameters")?.unwrap_or_else(Config::empty);
        let partial: Option<f64> = rope.optional("partial_rotary_factor")?;
        let partial = partial.or(config.optional("partial_rotary_factor")?).unwrap_or(0.25);
        if config.optional("attention_bias")? == Some(true) {
            return Err(PluginError::new("`attention_bias` is true; this family has no biases"));
        }
        let this = Self {
            vocab_size: config.dim("vocab_size")?,
            hidden_size: config.dim("hidden_size")?,
            context_length: config.dim_or("max_position_embeddings", 32_768)?,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            tie_word_embeddings: config.optional("tie_word_embeddings")?.unwrap_or(false),
            layers: layer_kinds(config, num_layers)?,
            // Qwen3-Next has one depth and no key for it.
            mtp_layers: config.optional("mtp_num_hidden_layers")?.unwrap_or(1),
            num_heads: config.dim("num_attention_heads")?,
            num_kv_heads: config.dim("num_key_value_heads")?,
            head_dim,
            rope: Rope::from_config(config, (head_dim as f64 * partial) as usize)?,
            linear_num_key_heads: config.dim_or("linear_num_key_heads", 16)?,
            linear_num_value_heads: config.dim_or("linear_num_value_heads", 32)?,
            linear_key_head_dim: config.dim_or("linear_key_head_dim", 128)?,
            linear_value_head_dim: config.dim_or("linear_value_head_dim", 128)?,
            linear_conv_kernel_dim: config.dim_or("linear_conv_kernel_dim", 4)?,
            intermediate_size: config.dim_or("intermediate_size", 5120)?,
            num_experts: config.optional("num_experts")?.unwrap_or(512),
            num_experts_per_tok: config.dim_or("num_experts_per_tok", 10)?,
            moe_intermediate_size: config.dim_or("moe_intermediate_size", 512)?,
            shared_expert_intermediate_size: config.dim_or("shared_expert_intermediate_size", 512)?,
            norm_topk_prob: config.optional("norm_topk_prob")?.unwrap_or(true),
            decoder_sparse_step: config.dim_or("decoder_sparse_step", 1)?,
            mlp_only_layers: config.optional("mlp_only_layers")?.unwrap_or_default(),
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

fn layer_kinds(config: &Config, num_layers: usize) -> Result<Vec<LayerKind>> {
    let Some(types) = config.optional::<Vec<String>>("layer_types")? else {
        let interval = config.dim_or("full_attention_interval", 4)?;
        let kind = |i: usize| {
            if (i + 1).is_multiple_of(interval) {
                LayerKind::FullAttention
            } else {
                LayerKind::LinearAttention
            }
        };
        return Ok((0..num_layers).map(kind).collect());
    };
    if types.len() != num_layers {
        let message = format!("`layer_types` has {} entries for {num_layers} layers", types.len());
        return Err(PluginError::new(message));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            "full_attention" => Ok(LayerKind::FullAttention),
            "linear_attention" => Ok(LayerKind::LinearAttention),
            other => Err(PluginError::new(format!(
                "`layer_types` holds `{other}`; expected full_attention or linear_attention"
            ))),
        })
        .collect()
}
