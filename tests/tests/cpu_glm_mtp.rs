//! The glm-mtp plugin on the CPU device, against golden models.

#![allow(clippy::unwrap_used)]

use metrale_core::lower::plan::ElementType;
use metrale_core::lower::{DeviceKind, Taps, Target, lower};
use metrale_core::weights::ModelSource;
use metrale_graph::resolve::resolve;
use metrale_graph::{Attrs, OpenModel};
use metrale_kernels::cpu::kv_cache::KvDtype::{BF16, F32};
use metrale_kernels::cpu::linear::Activations;
use metrale_tests::cpu_promises::{self, for_all};
use metrale_tests::golden::Goldens;
use metrale_tests::model::{Chunk, DeviceModel};
use metrale_tests::own_tables;

macro_rules! promises {
    ($($promise:ident: $kv_dtype:ident => $check:ident;)*) => {$(
        #[test]
        fn $promise() {
            for_all(metrale_glm_mtp::plugin_module(), $kv_dtype, cpu_promises::$check).unwrap();
        }
    )*};
}

promises! {
    logits_and_hidden_states_match_transformers: F32 => whole_pass_matches;
    a_bf16_cache_stays_within_twice_the_recorded_bf16_bound: BF16 => bf16_cache_stays_in_bounds;
    any_chunking_gives_the_same_bits: F32 => any_chunking_gives_the_same_bits;
    rows_of_other_sequences_do_not_change_a_bit: F32 => rows_of_others_do_not_change_a_bit;
    an_abandoned_sequence_leaves_nothing: F32 => an_abandoned_sequence_leaves_nothing;
    the_mtp_head_matches_transformers: F32 => mtp_matches;
    a_step_enters_no_plugin: F32 => a_step_enters_no_plugin;
}

#[test]
fn a_tensor_that_is_missing_renamed_transposed_or_of_integers_is_named() {
    assert!(metrale_tests::damaged::damage_is_named(metrale_glm_mtp::plugin_module()).unwrap() > 100);
}

#[test]
fn an_mtp_layer_uses_an_embedding_and_a_head_of_its_own() {
    let plugin = metrale_glm_mtp::plugin_module();
    let goldens = Goldens::of(plugin).unwrap();
    let golden = goldens.models.iter().find(|g| g.name == "seed0/glm4_moe").unwrap();
    let directory = own_tables::model_directory(golden, 3).unwrap();
    let source = ModelSource::open(directory.path()).unwrap();
    let mut model = DeviceModel::build(plugin, &source, 64, F32, Activations::F32).unwrap();

    let tokens = golden.token_ids().unwrap();
    let slots = tokens.len() - 1;
    model.step(&[Chunk::new(0, 0, &tokens)]).unwrap();
    let hidden = model.value("final_hidden", tokens.len()).unwrap().rows(0..slots);
    let next_ids = own_tables::next_ids(&tokens[1..], 256);
    let (_, logits) = model.mtp(0, Chunk::new(0, 0, &next_ids), &hidden).unwrap();
    own_tables::logits_match(golden, &logits).unwrap();
}

#[test]
fn the_cuda_device_refuses_latent_attention_before_any_weight_is_read() {
    let config = include_str!("../golden/configs/glm4_moe_lite.json");
    let attrs = Attrs::new().with("config.json", config);
    let text =
        OpenModel::open(metrale_glm_mtp::plugin_module(), &attrs, None).unwrap().trace("text", 0).unwrap();
    let (weights, _) = resolve(&text, None);
    let lowered = |device| {
        let target = Target { device, activations: ElementType::F32, taps: Taps::Drop, images: false };
        lower(&text, &weights, &text.states, target)
    };
    let refusal = lowered(DeviceKind::Cuda).unwrap_err().to_string();
    assert!(refusal.contains("the cuda device cannot run head_linear/1"), "{refusal}");
    assert!(lowered(DeviceKind::Cpu).is_ok());
}
