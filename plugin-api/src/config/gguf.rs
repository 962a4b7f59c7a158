//! GGUF metadata under the names that config.json uses, so that a plugin reads one kind of configuration.

use serde_json::{Map, Value as Json, json};

use crate::error::{PluginError, Result};

/// GGUF key (after the architecture's prefix) and the config.json key of the same meaning.
const KEYS: &[(&str, &str)] = &[
    ("vocab_size", "vocab_size"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("rope.freq_base", "rope_theta"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("full_attention_interval", "full_attention_interval"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
];

/// The configuration that the metadata describes; `model_type` is the GGUF architecture.
pub(super) fn to_config(metadata: &Map<String, Json>) -> Result<Map<String, Json>> {
    let Some(arch) = metadata.get("general.architecture").and_then(Json::as_str) else {
        return Err(PluginError::new("the GGUF file has no `general.architecture`"));
    };
    let get = |key: &str| metadata.get(&format!("{arch}.{key}"));
    let mut config = Map::new();
    config.insert("model_type".into(), json!(arch));
    for (gguf, name) in KEYS {
        if let Some(value) = get(gguf) {
            config.insert((*name).into(), value.clone());
        }
    }
    // Blocks of the MTP head are counted with the layers.
    let blocks = get("block_count").and_then(Json::as_u64);
    let mtp = get("nextn_predict_layers").and_then(Json::as_u64).unwrap_or(0);
    if let Some(blocks) = blocks {
        config.insert("num_hidden_layers".into(), json!(blocks.saturating_sub(mtp)));
    }
    if let Some(tokens) = metadata.get("tokenizer.ggml.tokens").and_then(list_length) {
        config.entry("vocab_size").or_insert(tokens);
    }
    if let Some(dim) = get("rope.dimension_count") {
        config.insert("rotary_dim".into(), dim.clone());
    }
    rope_scaling(&get, &mut config);
    Ok(config)
}

/// Length of a list; the core passes long lists as `{"elided": type, "length": n}`.
fn list_length(list: &Json) -> Option<Json> {
    list.as_array().map(|l| json!(l.len())).or_else(|| list.get("length").cloned())
}

fn rope_scaling<'a>(get: &impl Fn(&str) -> Option<&'a Json>, config: &mut Map<String, Json>) {
    let Some(kind) = get("rope.scaling.type").and_then(Json::as_str).filter(|k| *k != "none") else { return };
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), json!(kind));
    for (gguf, name) in [
        ("rope.scaling.factor", "factor"),
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
        ("rope.scaling.attn_factor", "attention_factor"),
        ("rope.scaling.yarn_beta_fast", "beta_fast"),
        ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ] {
        if let Some(value) = get(gguf) {
            scaling.insert(name.into(), value.clone());
        }
    }
    config.insert("rope_scaling".into(), Json::Object(scaling));
}
