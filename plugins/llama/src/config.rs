//! What config.json says, with each model type's own defaults.

use metrale_plugin_api::prelude::*;

/// One of the model types of this plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelType {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    SmolLm3,
}

impl ModelType {
    fn read(config: &Config) -> Result<Self> {
        match config.required::<String>("model_type")?.as_str() {
            "llama" => Ok(Self::Llama),
            "mistral" => Ok(Self::Mistral),
            "qwen2" => Ok(Self::Qwen2),
            "qwen3" => Ok(Self::Qwen3),
            "smollm3" => Ok(Self::SmolLm3),
            other => Err(PluginError::new(format!(
                "model_type `{other}`: expected llama, mistral, qwen2, qwen3 or smollm3"
            ))),
        }
    }
}

/// A dense decoder, fully decided.
#[derive(Clone, Debug)]
pub(crate) struct LlamaConfig {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_layers: usize,
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rms_norm_eps: f64,
    pub(crate) context_length: usize,
    pub(crate) tie_word_embeddings: bool,
    pub(crate) qkv_bias: bool,
    pub(crate) o_bias: bool,
    pub(crate) mlp_bias: bool,
    /// RMS norm of every query and key head before rope.
    pub(crate) qk_norm: bool,
    pub(crate) rope: Rope,
    /// Query and key rows are stored in the order for consecutive-pair rope (GGUF architecture `llama`).
    pub(crate) gguf_permuted: bool,
    pub(crate) is_gguf: bool,
    window: Option<usize>,
    windowed_layers: Vec<bool>,
    rope_layers: Vec<bool>,
}

impl LlamaConfig {
    pub(crate) fn read(config: &Config) -> Result<Self> {
        let model_type = ModelType::read(config)?;
        let num_heads = config.dim("num_attention_heads")?;
        let hidden_size = config.dim("hidden_size")?;
        let num_kv_heads = config.dim_or("num_key_value_heads", num_heads)?;
        let head_dim = config.dim_or("head_dim", hidden_size / num_heads)?;
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(PluginError::new(format!(
                "{num_heads} attention heads over {num_kv_heads} key-value heads: expected a multiple"
            )));
        }
        let act = config.optional::<String>("hidden_act")?.unwrap_or_else(|| "silu".into());
        if act != "silu" {
            return Err(PluginError::new(format!("hidden_act `{act}`: this family has only silu")));
        }
        let num_layers = config.dim("num_hidden_layers")?;
        let attention_bias = config.optional("attention_bias")?.unwrap_or(false);
        let partial: f64 = config.optional("partial_rotary_factor")?.unwrap_or(1.0);
        let rotary_dim = config.dim_or("rotary_dim", (head_dim as f64 * partial) as usize)?;
        let (window, windowed_layers) = window(config, model_type, num_layers)?;
        let (qkv_bias, o_bias) = match model_type {
            ModelType::Qwen2 => (true, false),
            ModelType::Mistral => (false, false),
            _ => (attention_bias, attention_bias),
        };
        Ok(Self {
            vocab_size: config.dim("vocab_size")?,
            hidden_size,
            intermediate_size: config.dim("intermediate_size")?,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            context_length: config.dim_or("max_position_embeddings", 2048)?,
            tie_word_embeddings: config.optional("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias,
            o_bias,
            mlp_bias: config.optional("mlp_bias")?.unwrap_or(false),
            qk_norm: model_type == ModelType::Qwen3,
            rope: Rope::from_config(config, rotary_dim)?,
            gguf_permuted: config.is_gguf() && model_type == ModelType::Llama,
            is_gguf: config.is_gguf(),
            window,
            windowed_layers,
            rope_layers: rope_layers(config, model_type, num_layers)?,
        })
    }

    /// The sliding window of a layer, if it has one.
    pub(crate) fn window(&self, layer: usize) -> Option<usize> {
        self.window.filter(|_| self.windowed_layers[layer])
    }

    /// Whether a layer rotates queries and keys (`SmolLM3` leaves some out).
    pub(crate) fn uses_rope(&self, layer: usize) -> bool {
        self.rope_layers[layer]
    }
}

fn window(config: &Config, model_type: ModelType, num_layers: usize) -> Result<(Option<usize>, Vec<bool>)> {
    let all = vec![true; num_layers];
    let window = config.optional::<usize>("sliding_window")?.filter(|&w| w > 0);
    match model_type {
        ModelType::Llama => Ok((window.filter(|_| config.is_gguf()), all)),
        ModelType::Mistral if !config.contains("sliding_window") => Ok((Some(4096), all)),
        ModelType::Mistral => Ok((window, all)),
        ModelType::Qwen2 | ModelType::Qwen3 | ModelType::SmolLm3 => {
            let used = config.optional("use_sliding_window")?.unwrap_or(false);
            let layers = if let Some(types) = config.optional::<Vec<String>>("layer_types")? {
                per_layer("layer_types", &types, num_layers, |t| t == "sliding_attention")?
            } else {
                let first = config.optional("max_window_layers")?.unwrap_or(28);
                (0..num_layers).map(|i| i >= first).collect()
            };
            Ok((window.filter(|_| used), layers))
        }
    }
}

fn rope_layers(config: &Config, model_type: ModelType, num_layers: usize) -> Result<Vec<bool>> {
    if model_type != ModelType::SmolLm3 {
        return Ok(vec![true; num_layers]);
    }
    if let Some(flags) = config.optional::<Vec<u8>>("no_rope_layers")? {
        return per_layer("no_rope_layers", &flags, num_layers, |&flag| flag != 0);
    }
    let interval = config.dim_or("no_rope_layer_interval", 4)?;
    Ok((0..num_layers).map(|i| !(i + 1).is_multiple_of(interval)).collect())
}

fn per_layer<T>(key: &str, items: &[T], num_layers: usize, f: impl Fn(&T) -> bool) -> Result<Vec<bool>> {
    if items.len() == num_layers {
        Ok(items.iter().map(f).collect())
    } else {
        Err(PluginError::new(format!("`{key}` has {} entries for {num_layers} layers", items.len())))
    }
}
