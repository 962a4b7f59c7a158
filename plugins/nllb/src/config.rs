//! What config.json says.

use metrale_plugin_api::prelude::*;

/// Not in any config.json of the family.
pub(crate) const LAYER_NORM_EPS: f64 = 1e-5;

/// NLLB-200's languages, in the order of their token ids.
const NLLB_LANGUAGES: &str = include_str!("languages.txt");
/// Vocabularies from this size on have them; smaller ones are M2M-100's.
const NLLB_VOCAB_SIZE: usize = 256_204;

/// One of the two stacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    pub(crate) num_layers: usize,
    pub(crate) num_heads: usize,
    pub(crate) ffn_dim: usize,
    /// Every so many layers, the feed-forward layer is a mixture of experts; 0 for none.
    sparse_step: usize,
}

impl Stack {
    /// Whether a layer's feed-forward layer is a mixture of experts.
    pub(crate) fn is_sparse(&self, layer: usize) -> bool {
        self.sparse_step > 0 && (layer + 1).is_multiple_of(self.sparse_step)
    }
}

/// What the parts of a layer are called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) cross_attention: &'static str,
    pub(crate) cross_attention_norm: &'static str,
    /// Scope of the feed-forward layer, if it has one of its own.
    pub(crate) ffn: Option<&'static str>,
    pub(crate) ffn_norm: &'static str,
}

impl Names {
    const DENSE: Self = Self {
        cross_attention: "encoder_attn",
        cross_attention_norm: "encoder_attn_layer_norm",
        ffn: None,
        ffn_norm: "final_layer_norm",
    };
    const MOE: Self = Self {
        cross_attention: "cross_attention",
        cross_attention_norm: "cross_attention_layer_norm",
        ffn: Some("ffn"),
        ffn_norm: "ff_layer_norm",
    };
}

/// The mixtures of experts of nllb-moe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeConfig {
    pub(crate) num_experts: usize,
    pub(crate) router_bias: bool,
    /// Multiplies what the experts give, as dropout does on average in training.
    pub(crate) scale: f64,
}

impl MoeConfig {
    fn read(config: &Config) -> Result<Self> {
        let capacity: f64 = config.optional("moe_eval_capacity_token_fraction")?.unwrap_or(1.0);
        if capacity < 1.0 {
            return Err(PluginError::new(format!(
                "`moe_eval_capacity_token_fraction` is {capacity}; expected 1: dropping tokens would make a translation depend on its batch"
            )));
        }
        let policy: Option<String> = config.optional("second_expert_policy")?;
        if let Some(other) = policy.filter(|p| p != "all") {
            return Err(PluginError::new(format!(
                "`second_expert_policy` is `{other}`; this family has only `all`"
            )));
        }
        let dropout: f64 = config.optional("moe_token_dropout")?.unwrap_or(0.2);
        Ok(Self {
            num_experts: config.dim_or("num_experts", 128)?,
            router_bias: config.optional("router_bias")?.unwrap_or(false),
            scale: 1.0 - dropout,
        })
    }
}

/// An encoder-decoder, fully decided.
#[derive(Clone, Debug)]
pub(crate) struct NllbConfig {
    pub(crate) vocab_size: usize,
    pub(crate) d_model: usize,
    pub(crate) encoder: Stack,
    pub(crate) decoder: Stack,
    pub(crate) context_length: usize,
    /// Multiplies looked-up embeddings; the output head uses the table as it is.
    pub(crate) embed_scale: f64,
    pub(crate) tie_word_embeddings: bool,
    pub(crate) names: Names,
    /// Of the model type `nllb-moe`.
    pub(crate) moe: Option<MoeConfig>,
    decoder_start_token_id: i64,
}

impl NllbConfig {
    pub(crate) fn read(config: &Config) -> Result<Self> {
        let d_model = config.dim("d_model")?;
        let activation: Option<String> = config.optional("activation_function")?;
        if let Some(other) = activation.filter(|a| a != "relu") {
            return Err(PluginError::new(format!(
                "`activation_function` is `{other}`; this family has only relu"
            )));
        }
        let is_moe = config.optional("model_type")? == Some("nllb-moe".to_owned());
        let scaled = config.optional("scale_embedding")?.unwrap_or(true);
        Ok(Self {
            vocab_size: config.dim("vocab_size")?,
            d_model,
            encoder: Stack::read(config, "encoder", d_model, is_moe)?,
            decoder: Stack::read(config, "decoder", d_model, is_moe)?,
            context_length: config.dim_or("max_position_embeddings", 1024)?,
            embed_scale: if scaled { (d_model as f64).sqrt() } else { 1.0 },
            tie_word_embeddings: config.optional("tie_word_embeddings")?.unwrap_or(true),
            names: if is_moe { Names::MOE } else { Names::DENSE },
            moe: is_moe.then(|| MoeConfig::read(config)).transpose()?,
            decoder_start_token_id: config.optional("decoder_start_token_id")?.unwrap_or(2),
        })
    }

    /// How a translation is asked for: the source starts with its language and ends with `</s>`, the target starts with
    /// `decoder_start_token_id`, then its language.
    pub(crate) fn translation_facts(&self, info: ModelInfo) -> ModelInfo {
        let info = info
            .with("decoder_start_token_id", self.decoder_start_token_id)
            .with("translation.source_format", "{source_language}{text}</s>")
            .with("translation.forced_first_token", "{target_language}");
        if self.vocab_size < NLLB_VOCAB_SIZE {
            return info;
        }
        info.with("translation.languages", NLLB_LANGUAGES.lines().map(str::to_owned).collect::<Vec<_>>())
    }
}

impl Stack {
    fn read(config: &Config, name: &str, d_model: usize, is_moe: bool) -> Result<Self> {
        let num_heads = config.dim(&format!("{name}_attention_heads"))?;
        if !d_model.is_multiple_of(num_heads) {
            let message =
                format!("`d_model` is {d_model} over {num_heads} {name} heads: expected a multiple");
            return Err(PluginError::new(message));
        }
        Ok(Self {
            num_layers: config.dim(&format!("{name}_layers"))?,
            num_heads,
            ffn_dim: config.dim(&format!("{name}_ffn_dim"))?,
            sparse_step: if is_moe { config.dim_or(&format!("{name}_sparse_step"), 4)? } else { 0 },
        })
    }
}
