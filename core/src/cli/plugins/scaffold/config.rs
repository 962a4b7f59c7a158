//! What config.json says.

use metrale_plugin_api::prelude::*;

/// The dimensions of one model.
#[derive(Clone, Debug)]
pub(crate) struct ModelConfig {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_layers: usize,
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) context_length: usize,
    pub(crate) rms_norm_eps: f64,
    pub(crate) rope: Rope,
}

impl ModelConfig {
    /// `dim` wants a key that is there and at least 1, `dim_or` has a default, `optional` may be missing. A value that is
    /// wrong ends in an error that names the key, what was expected and what was found: nothing here can panic.
    pub(crate) fn read(config: &Config) -> Result<Self> {
        let hidden_size = config.dim("hidden_size")?;
        let num_heads = config.dim("num_attention_heads")?;
        let num_kv_heads = config.dim_or("num_key_value_heads", num_heads)?;
        let head_dim = config.dim_or("head_dim", hidden_size / num_heads)?;
        if !num_heads.is_multiple_of(num_kv_heads) {
            // What the SDK cannot know, check yourself.
            return Err(PluginError::new(format!(
                "{num_heads} attention heads over {num_kv_heads} key-value heads"
            ))
            .with_help("`num_attention_heads` must be a multiple of `num_key_value_heads`"));
        }
        Ok(Self {
            vocab_size: config.dim("vocab_size")?,
            hidden_size,
            intermediate_size: config.dim("intermediate_size")?,
            num_layers: config.dim("num_hidden_layers")?,
            num_heads,
            num_kv_heads,
            head_dim,
            context_length: config.dim_or("max_position_embeddings", 2048)?,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            // Reads `rope_theta`, `rope_scaling` and `rope_parameters`, with every published scaling rule.
            rope: Rope::from_config(config, head_dim)?,
        })
    }
}
