//! What config.json says, with each model type's own defaults.

use metrale_plugin_api::prelude::*;

/// How the layers of a model attend.
#[derive(Clone, Debug)]
pub(crate) enum AttentionConfig {
    GroupedQuery(GroupedQuery),
    Latent(Latent),
}

/// Grouped-query attention.
#[derive(Clone, Debug)]
pub(crate) struct GroupedQuery {
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rope: Rope,
    /// Biases of the query, key and value projections.
    pub(crate) bias: bool,
    /// RMS norm of every query and key head before rope.
    pub(crate) qk_norm: bool,
}

/// Multi-head latent attention.
#[derive(Clone, Debug)]
pub(crate) struct Latent {
    pub(crate) num_heads: usize,
    /// Width of the queries' bottleneck, if they have one.
    pub(crate) q_lora_rank: Option<usize>,
    /// Width of the latent that keys and values are made from.
    pub(crate) kv_lora_rank: usize,
    pub(crate) nope_dim: usize,
    pub(crate) rope_dim: usize,
    pub(crate) v_dim: usize,
    pub(crate) rope: Rope,
    /// Multiplies the scores.
    pub(crate) scale: f64,
    pub(crate) indexer: Option<TokenIndexer>,
}

/// Chooses the tokens that sparse attention reads.
#[derive(Clone, Debug)]
pub(crate) struct TokenIndexer {
    pub(crate) num_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) top_k: usize,
    /// Whether a layer chooses for itself; the others do as the last one that did.
    pub(crate) is_full: Vec<bool>,
}

/// A decoder with its multi-token-prediction layers, fully decided.
#[derive(Clone, Debug)]
pub(crate) struct GlmConfig {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) context_length: usize,
    pub(crate) rms_norm_eps: f64,
    pub(crate) tie_word_embeddings: bool,
    pub(crate) mtp_layers: usize,
    pub(crate) attention: AttentionConfig,
    /// Whether each layer of the trunk ends in a mixture of experts.
    pub(crate) is_moe: Vec<bool>,
    pub(crate) intermediate_size: usize,
    pub(crate) moe_intermediate_size: usize,
    pub(crate) num_experts: usize,
    pub(crate) num_shared_experts: usize,
    pub(crate) num_experts_per_tok: usize,
    /// Experts are chosen within the best `.1` of `.0` groups.
    pub(crate) expert_groups: (usize, usize),
    pub(crate) norm_topk_prob: bool,
    pub(crate) routed_scaling_factor: f64,
}

impl GlmConfig {
    pub(crate) fn read(config: &Config) -> Result<Self> {
        let num_layers = config.dim("num_hidden_layers")?;
        let (attention, first_dense) = match config.required::<String>("model_type")?.as_str() {
            "glm4_moe" => (AttentionConfig::GroupedQuery(GroupedQuery::read(config)?), 1),
            "glm4_moe_lite" => (AttentionConfig::Latent(Latent::read(config, None)?), 1),
            "glm_moe_dsa" => {
                let indexer = TokenIndexer::read(config, num_layers)?;
                (AttentionConfig::Latent(Latent::read(config, Some(indexer))?), 3)
            }
            other => {
                return Err(PluginError::new(format!(
                    "model_type `{other}`: expected glm4_moe, glm4_moe_lite or glm_moe_dsa"
                )));
            }
        };
        let act = config.optional::<String>("hidden_act")?.unwrap_or_else(|| "silu".into());
        if act != "silu" {
            return Err(PluginError::new(format!("hidden_act `{act}`: this family has only silu")));
        }
        Ok(Self {
            vocab_size: config.dim("vocab_size")?,
            hidden_size: config.dim("hidden_size")?,
            context_length: config.dim_or("max_position_embeddings", 131_072)?,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-5),
            tie_word_embeddings: config.optional("tie_word_embeddings")?.unwrap_or(false),
            mtp_layers: config.optional("num_nextn_predict_layers")?.unwrap_or(1),
            attention,
            is_moe: moe_layers(config, num_layers, first_dense)?,
            intermediate_size: config.dim("intermediate_size")?,
            moe_intermediate_size: config.dim("moe_intermediate_size")?,
            num_experts: config.dim("n_routed_experts")?,
            num_shared_experts: config.optional("n_shared_experts")?.unwrap_or(1),
            num_experts_per_tok: config.dim("num_experts_per_tok")?,
            expert_groups: (config.dim_or("n_group", 1)?, config.dim_or("topk_group", 1)?),
            norm_topk_prob: config.optional("norm_topk_prob")?.unwrap_or(true),
            routed_scaling_factor: config.optional("routed_scaling_factor")?.unwrap_or(1.0),
        })
    }

    /// The norm of this family over `width` elements.
    pub(crate) fn rms_norm(&self, g: &Graph, name: TensorName, width: usize, x: Value) -> Result<Value> {
        g.rms_norm(x, g.weight(name, &[width], Role::Replicated)?, self.rms_norm_eps)
    }
}

impl GroupedQuery {
    fn read(config: &Config) -> Result<Self> {
        let num_heads = config.dim("num_attention_heads")?;
        let num_kv_heads = config.dim_or("num_key_value_heads", num_heads)?;
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(PluginError::new(format!(
                "{num_heads} attention heads over {num_kv_heads} key-value heads: expected a multiple"
            )));
        }
        let head_dim = config.dim_or("head_dim", config.dim("hidden_size")? / num_heads)?;
        let rope = config.section("rope_parameters")?.unwrap_or_else(Config::empty);
        let partial: Option<f64> = rope.optional("partial_rotary_factor")?;
        let partial = partial.or(config.optional("partial_rotary_factor")?).unwrap_or(0.5);
        Ok(Self {
            num_heads,
            num_kv_heads,
            head_dim,
            rope: Rope::from_config(config, (head_dim as f64 * partial) as usize)?,
            bias: config.optional("attention_bias")?.unwrap_or(false),
            qk_norm: config.optional("use_qk_norm")?.unwrap_or(false),
        })
    }
}

impl Latent {
    fn read(config: &Config, indexer: Option<TokenIndexer>) -> Result<Self> {
        if config.optional("attention_bias")? == Some(true) {
            return Err(PluginError::new("`attention_bias` is true; latent attention has no biases here"));
        }
        // `head_dim` in these files is the rotated part only.
        let (nope_dim, rope_dim) = (config.dim("qk_nope_head_dim")?, config.dim("qk_rope_head_dim")?);
        let rope = Rope::from_config(config, rope_dim)?;
        let interleaved = config.optional("rope_interleave")?.unwrap_or(true);
        Ok(Self {
            num_heads: config.dim("num_attention_heads")?,
            q_lora_rank: config.optional::<usize>("q_lora_rank")?.filter(|&rank| rank > 0),
            kv_lora_rank: config.dim("kv_lora_rank")?,
            nope_dim,
            rope_dim,
            v_dim: config.dim("v_head_dim")?,
            rope: if interleaved { rope.interleaved() } else { rope },
            scale: ((nope_dim + rope_dim) as f64).powf(-0.5) * yarn_scale(config)?,
            indexer,
        })
    }
}

/// `YaRN` with `mscale_all_dim` sharpens scores by the square of its attention factor.
fn yarn_scale(config: &Config) -> Result<f64> {
    let rope = match config.section("rope_parameters")? {
        Some(rope) => Some(rope),
        None => config.section("rope_scaling")?,
    };
    let Some(rope) = rope else { return Ok(1.0) };
    let all_dim = rope.optional::<f64>("mscale_all_dim")?.unwrap_or(0.0);
    let factor = rope.optional::<f64>("factor")?.unwrap_or(1.0);
    Ok(if factor > 1.0 { (0.1 * all_dim * factor.ln() + 1.0).powi(2) } else { 1.0 })
}

impl TokenIndexer {
    fn read(config: &Config, num_layers: usize) -> Result<Self> {
        Ok(Self {
            num_heads: config.dim_or("index_n_heads", 32)?,
            head_dim: config.dim_or("index_head_dim", 128)?,
            top_k: config.dim_or("index_topk", 2048)?,
            is_full: full_indexers(config, num_layers)?,
        })
    }
}

/// `indexer_types`, a pattern of letters, or every n-th layer from an offset on.
fn full_indexers(config: &Config, num_layers: usize) -> Result<Vec<bool>> {
    let (key, names) = if let Some(types) = config.optional::<Vec<String>>("indexer_types")? {
        ("indexer_types", types)
    } else if let Some(pattern) = config.optional::<String>("index_topk_pattern")? {
        ("index_topk_pattern", pattern.chars().map(String::from).collect())
    } else {
        let frequency = config.dim_or("index_topk_freq", 1)?;
        let offset: usize = config.optional("index_skip_topk_offset")?.unwrap_or(2);
        return Ok((0..num_layers)
            .map(|i| (i + 1).saturating_sub(offset).is_multiple_of(frequency))
            .collect());
    };
    let is_full = |name: &String| match name.as_str() {
        "full" | "F" => Ok(true),
        "shared" | "S" => Ok(false),
        other => Err(PluginError::new(format!("`{key}` holds `{other}`; expected full or shared"))),
    };
    let is_full = names.iter().map(is_full).collect::<Result<Vec<_>>>()?;
    match (is_full.first(), is_full.len() == num_layers) {
        (Some(true), true) => Ok(is_full),
        (Some(false), true) => Err(PluginError::new(format!("`{key}`: the first layer has none to share"))),
        _ => Err(PluginError::new(format!("`{key}` has {} entries for {num_layers} layers", is_full.len()))),
    }
}

/// `mlp_layer_types`, or all layers but the first few.
fn moe_layers(config: &Config, num_layers: usize, first_dense: usize) -> Result<Vec<bool>> {
    let Some(types) = config.optional::<Vec<String>>("mlp_layer_types")? else {
        let dense: usize = config.optional("first_k_dense_replace")?.unwrap_or(first_dense);
        return Ok((0..num_layers).map(|layer| layer >= dense).collect());
    };
    if types.len() != num_layers {
        let message = format!("`mlp_layer_types` has {} entries for {num_layers} layers", types.len());
        return Err(PluginError::new(message));
    }
    let is_moe = |name: &String| match name.as_str() {
        "dense" => Ok(false),
        "sparse" => Ok(true),
        other => {
            Err(PluginError::new(format!("`mlp_layer_types` holds `{other}`; expected dense or sparse")))
        }
    };
    types.iter().map(is_moe).collect()
}
