//! The minimax_m2 plugin, interpreted, against golden models.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use anyhow::{Context, Result};
use metrale_graph::checkpoint::gguf::Value;
use metrale_graph::checkpoint::write;
use metrale_reference::{Checkpoint, Model, Sequence};
use metrale_tests::differences::Differences;
use metrale_tests::golden::Goldens;
use metrale_tests::interpreter::{self, Check, check_all};
use metrale_tests::stored::Stored;

fn holds(check: Check) -> Result<bool> {
    let (lines, all_hold) = check_all(metrale_minimax_m2::plugin_module(), check)?;
    report(&lines);
    Ok(all_hold)
}

#[allow(clippy::print_stdout)]
fn report(lines: &[String]) {
    println!("{}", lines.join("\n"));
}

macro_rules! promises {
    ($($promise:ident => $check:ident;)*) => {$(
        #[test]
        fn $promise() {
            assert!(holds(interpreter::$check).unwrap());
        }
    )*};
}

promises! {
    logits_and_hidden_states_match_transformers => whole_pass_matches;
    cached_decoding_matches_transformers => cached_decoding_matches;
    chunked_prefill_equals_whole_prefill => chunks_match_the_whole_pass;
    sequences_of_a_batch_are_independent => sequences_of_a_batch_are_independent;
}

/// Tensor names of a checkpoint, and those of GGUF files.
const GGUF_NAMES: &[(&str, &str)] = &[
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("model.layers.", "blk."),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"),
    ("block_sparse_moe.experts.0.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.0.w3", "ffn_up_exps"),
    ("block_sparse_moe.experts.0.w2", "ffn_down_exps"),
];

/// Tensors as a GGUF file holds them: experts stacked, in F32.
fn gguf_tensors(tensors: &[Stored]) -> Result<Vec<Stored>> {
    let is_later_expert = |t: &&Stored| t.name.contains(".experts.") && !t.name.contains(".experts.0.");
    let converted = tensors.iter().filter(|t| !is_later_expert(t)).map(|tensor| {
        let mut made = tensor.widened()?;
        made.name = GGUF_NAMES.iter().fold(tensor.name.clone(), |name, (from, to)| name.replace(from, to));
        for expert in 1.. {
            let name = tensor.name.replace(".experts.0.", &format!(".experts.{expert}."));
            let Some(next) = tensors.iter().find(|t| t.name == name && name != tensor.name) else {
                if expert > 1 {
                    made.shape.insert(0, expert);
                }
                break;
            };
            made.bytes.extend(next.widened()?.bytes);
        }
        Ok(made)
    });
    converted.collect()
}

#[test]
fn a_gguf_file_of_the_same_model_gives_the_same_logits() {
    let plugin = metrale_minimax_m2::plugin_module();
    let goldens = Goldens::of(plugin).unwrap();
    let golden = goldens.models.iter().find(|g| g.name == "seed0/minimax_m2").context("no golden").unwrap();
    let size = |key: &str, value: u32| (format!("minimax-m2.{key}"), Value::U32(value));
    let real = |key: &str, value: f32| (format!("minimax-m2.{key}"), Value::F32(value));
    let metadata = [
        ("general.architecture".to_owned(), Value::String("minimax-m2".into())),
        size("vocab_size", 256),
        size("block_count", 3),
        size("context_length", 4096),
        size("embedding_length", 64),
        size("feed_forward_length", 32),
        size("expert_count", 8),
        size("expert_used_count", 3),
        size("attention.head_count", 6),
        size("attention.head_count_kv", 2),
        size("attention.key_length", 16),
        size("rope.dimension_count", 8),
        real("rope.freq_base", 5e6),
        real("attention.layer_norm_rms_epsilon", 1e-6),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let tensors = gguf_tensors(&Stored::of(golden).unwrap()).unwrap();
    let views: Vec<_> = tensors.iter().map(Stored::view).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, write::gguf(&metadata, &views).unwrap()).unwrap();

    let model = Model::open(plugin, &Checkpoint::read(&path).unwrap(), None).unwrap();
    let found = model.advance(&mut Sequence::new(), &golden.token_ids().unwrap()).unwrap();
    let mut differences = Differences::default();
    let expected = golden.required_array("logits_f32_nocache.npy").unwrap();
    differences.compare("logits", &found.logits, &expected).unwrap();
    assert!(differences.within_tolerance(), "{differences}");
}
