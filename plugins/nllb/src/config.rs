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
        let scaled = config.optional("scale_embedding")?.unwrap_or(true);
        Ok(Self {
            vocab_size: config.dim("vocab_size")?,
            d_model,
            encoder: Stack::read(config, "encoder", d_model)?,
            decoder: Stack::read(config, "decoder", d_model)?,
            context_length: config.dim_or("max_position_embeddings", 1024)?,
            embed_scale: if scaled { (d_model as f64).sqrt() } else { 1.0 },
            tie_word_embeddings: config.optional("tie_word_embeddings")?.unwrap_or(true),
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
    fn read(config: &Config, name: &str, d_model: usize) -> Result<Self> {
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
        })
    }
}
