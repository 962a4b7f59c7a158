//! What config.json says, with each model type's own defaults.

use metrale_plugin_api::prelude::*;

/// RMS norm of queries and keys before rope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    None,
    /// One norm over all heads together.
    Flattened,
    /// Each head by itself.
    PerHead,
}

/// Chooses the blocks of keys that a layer attends to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockIndexer {
    pub(crate) num_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_size: usize,
    pub(crate) top_blocks: usize,
    /// Blocks up to the query's own that are always chosen.
    pub(crate) local_blocks: usize,
}

/// What kinds of attention and feed-forward layer a block has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    pub(crate) is_sparse: bool,
    pub(crate) is_moe: bool,
}

/// A decoder, fully decided.
#[derive(Clone, Debug)]
pub(crate) struct MiniMaxConfig {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) context_length: usize,
    pub(crate) rms_norm_eps: f64,
    /// Weights of norms are stored around zero.
    pub(crate) zero_centered: bool,
    pub(crate) tie_word_embeddings: bool,
    pub(crate) is_gguf: bool,
    /// Places where the checkpoint may keep the decoder: before `model` and `lm_head`.
    pub(crate) prefixes: &'static [&'static str],
    pub(crate) layers: Vec<Layer>,
    // Attention
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rope: Rope,
    pub(crate) qk_norm: QkNorm,
    pub(crate) indexer: Option<BlockIndexer>,
    // Feed-forward layers
    pub(crate) activation: ExpertActivation,
    pub(crate) intermediate_size: usize,
    pub(crate) dense_intermediate_size: usize,
    /// Width of the expert that all tokens share; 0 without one.
    pub(crate) shared_intermediate_size: usize,
    pub(crate) num_experts: usize,
    pub(crate) num_experts_per_tok: usize,
    pub(crate) use_routing_bias: bool,
    pub(crate) routed_scaling_factor: f64,
}

impl MiniMaxConfig {
    pub(crate) fn read(config: &Config) -> Result<Self> {
        match config.required::<String>("model_type")?.as_str() {
            "minimax_m2" | "minimax-m2" => Self::m2(config),
            "minimax_m3_vl_text" => Self::m3(config),
            "minimax_m3_vl" => match config.section("text_config")? {
                Some(text) => Self::m3(&text),
                None => Err(PluginError::new("`text_config` is missing; expected an object")),
            },
            other => Err(PluginError::new(format!(
                "model_type `{other}`: expected minimax_m2, minimax_m3_vl or minimax_m3_vl_text"
            ))),
        }
    }

    fn m2(config: &Config) -> Result<Self> {
        let scoring = config.optional::<String>("scoring_func")?.unwrap_or_else(|| "sigmoid".into());
        if scoring != "sigmoid" {
            return Err(PluginError::new(format!("scoring_func `{scoring}`: this family has only sigmoid")));
        }
        let qk_norm = match config.optional::<String>("qk_norm_type")?.as_deref() {
            _ if config.optional("use_qk_norm")? == Some(false) => QkNorm::None,
            None | Some("per_layer") => QkNorm::Flattened,
            Some("per_head") => QkNorm::PerHead,
            Some(other) => {
                let message = format!("qk_norm_type `{other}`: expected per_layer or per_head");
                return Err(PluginError::new(message));
            }
        };
        let num_layers = config.dim("num_hidden_layers")?;
        Ok(Self {
            layers: vec![Layer { is_sparse: false, is_moe: true }; num_layers],
            qk_norm,
            shared_intermediate_size: config.optional("shared_intermediate_size")?.unwrap_or(0),
            use_routing_bias: config.optional("use_routing_bias")?.unwrap_or(true),
            ..Self::shared(config)?
        })
    }

    fn m3(config: &Config) -> Result<Self> {
        let num_layers = config.dim("num_hidden_layers")?;
        // Published files keep the keys of sparse attention in a section of their own, under other names.
        let nested = config.section("sparse_attention_config")?.unwrap_or_else(Config::empty);
        let kinds = ["full_attention", "minimax_m3_sparse"];
        let sparse = per_layer(config, "layer_types", kinds, (&nested, "sparse_attention_freq"), num_layers)?;
        let moe = per_layer(
            config,
            "mlp_layer_types",
            ["dense", "sparse"],
            (config, "moe_layer_freq"),
            num_layers,
        )?;
        let layer = |(is_sparse, is_moe)| Layer { is_sparse, is_moe };
        Ok(Self {
            layers: sparse
                .unwrap_or_else(|| vec![false; num_layers])
                .into_iter()
                .zip(moe.unwrap_or_else(|| vec![true; num_layers]))
                .map(layer)
                .collect(),
            zero_centered: true,
            prefixes: &["language_model", ""],
            qk_norm: QkNorm::PerHead,
            indexer: Some(BlockIndexer {
                num_heads: nested.dim_or("sparse_num_index_heads", config.dim_or("index_n_heads", 4)?)?,
                head_dim: nested.dim_or("sparse_index_dim", config.dim_or("index_head_dim", 128)?)?,
                block_size: nested.dim_or("sparse_block_size", config.dim_or("index_block_size", 128)?)?,
                top_blocks: nested.dim_or("sparse_topk_blocks", config.dim_or("index_topk_blocks", 16)?)?,
                local_blocks: nested.dim_or("sparse_local_block", config.dim_or("index_local_blocks", 1)?)?,
            }),
            activation: ExpertActivation::SwigluOai {
                limit: config.optional("swiglu_limit")?.unwrap_or(7.0),
                alpha: config.optional("swiglu_alpha")?.unwrap_or(1.702),
            },
            dense_intermediate_size: config.dim_or("dense_intermediate_size", 12_288)?,
            shared_intermediate_size: config.optional("shared_intermediate_size")?.unwrap_or(3072),
            routed_scaling_factor: config.optional("routed_scaling_factor")?.unwrap_or(2.0),
            ..Self::shared(config)?
        })
    }

    /// Keys that mean the same in both generations, and MiniMax-M2's choices for the rest.
    fn shared(config: &Config) -> Result<Self> {
        let (num_heads, head_dim) = (config.dim("num_attention_heads")?, config.dim_or("head_dim", 128)?);
        let num_kv_heads = config.dim_or("num_key_value_heads", num_heads)?;
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(PluginError::new(format!(
                "{num_heads} attention heads over {num_kv_heads} key-value heads: expected a multiple"
            )));
        }
        let rope = config.section("rope_parameters")?.unwrap_or_else(Config::empty);
        let partial: Option<f64> = rope.optional("partial_rotary_factor")?;
        let partial = partial.or(config.optional("partial_rotary_factor")?).unwrap_or(0.5);
        let rotary_dim = config.dim_or("rotary_dim", (head_dim as f64 * partial) as usize)?;
        Ok(Self {
            vocab_size: config.dim("vocab_size")?,
            hidden_size: config.dim("hidden_size")?,
            context_length: config.dim_or("max_position_embeddings", 196_608)?,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            zero_centered: false,
            tie_word_embeddings: config.optional("tie_word_embeddings")?.unwrap_or(false),
            is_gguf: config.is_gguf(),
            prefixes: &[""],
            layers: Vec::new(),
            num_heads,
            num_kv_heads,
            head_dim,
            rope: Rope::from_config(config, rotary_dim)?,
            qk_norm: QkNorm::Flattened,
            indexer: None,
            activation: ExpertActivation::Silu { limit: None },
            intermediate_size: config.dim("intermediate_size")?,
            dense_intermediate_size: 0,
            shared_intermediate_size: 0,
            // GGUF files call it as other families do.
            num_experts: config.dim(if config.is_gguf() { "num_experts" } else { "num_local_experts" })?,
            num_experts_per_tok: config.dim("num_experts_per_tok")?,
            use_routing_bias: true,
            routed_scaling_factor: 1.0,
        })
    }

    /// The norm of this family over `width` elements.
    pub(crate) fn rms_norm(
        &self,
        g: &Graph,
        name: TensorName,
        width: usize,
        role: Role,
        x: Value,
    ) -> Result<Value> {
        let weight = g.weight(name, &[width], role)?;
        if self.zero_centered {
            g.rms_norm_zero_centered(x, weight, self.rms_norm_eps)
        } else {
            g.rms_norm(x, weight, self.rms_norm_eps)
        }
    }
}

/// Whether each layer is of the second of two kinds: by the list of their names under `key`, or by a list of flags.
fn per_layer(
    config: &Config,
    key: &str,
    [first, second]: [&str; 2],
    (flags_config, flags_key): (&Config, &str),
    num_layers: usize,
) -> Result<Option<Vec<bool>>> {
    let kind = |name: &String| match name.as_str() {
        name if name == first => Ok(false),
        name if name == second => Ok(true),
        other => Err(PluginError::new(format!("`{key}` holds `{other}`; expected {first} or {second}"))),
    };
    let (key, kinds): (_, Vec<bool>) = if let Some(names) = config.optional::<Vec<String>>(key)? {
        (key, names.iter().map(kind).collect::<Result<_>>()?)
    } else if let Some(flags) = flags_config.optional::<Vec<u8>>(flags_key)? {
        (flags_key, flags.iter().map(|&flag| flag != 0).collect())
    } else {
        return Ok(None);
    };
    if kinds.len() == num_layers {
        Ok(Some(kinds))
    } else {
        Err(PluginError::new(format!("`{key}` has {} entries for {num_layers} layers", kinds.len())))
    }
}
