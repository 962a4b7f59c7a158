//! The qwen3-ssm plugin on the CPU device, against golden models.

#![allow(clippy::unwrap_used)]

use metrale_kernels::cpu::kv_cache::KvDtype::{BF16, F32};
use metrale_tests::cpu_promises::{self, for_all};
use metrale_tests::damaged::{damage_is_named, notes_without};
use metrale_tests::golden::{Golden, Goldens};

macro_rules! promises {
    ($($promise:ident: $kv_dtype:ident => $check:ident;)*) => {$(
        #[test]
        fn $promise() {
            for_all(metrale_qwen3_ssm::plugin_module(), $kv_dtype, cpu_promises::$check).unwrap();
        }
    )*};
}

promises! {
    logits_and_hidden_states_match_transformers: F32 => whole_pass_matches;
    a_bf16_cache_stays_within_twice_the_recorded_bf16_bound: BF16 => bf16_cache_stays_in_bounds;
    any_chunking_gives_the_same_bits: F32 => any_chunking_gives_the_same_bits;
    rows_of_other_sequences_do_not_change_a_bit: F32 => rows_of_others_do_not_change_a_bit;
    an_abandoned_sequence_leaves_nothing: F32 => an_abandoned_sequence_leaves_nothing;
    a_snapshot_continues_with_the_same_bits: F32 => a_snapshot_continues_with_the_same_bits;
    the_mtp_head_matches_transformers: F32 => mtp_matches;
    image_rows_match_transformers: F32 => image_rows_match;
    rejected_drafts_leave_no_trace: F32 => rejected_drafts_leave_no_trace;
    a_step_enters_no_plugin: F32 => a_step_enters_no_plugin;
}

/// The golden model of a configuration.
fn with_golden(name: &str, check: impl FnOnce(&Golden)) {
    let goldens = Goldens::of(metrale_qwen3_ssm::plugin_module()).unwrap();
    check(goldens.models.iter().find(|golden| golden.name.ends_with(name)).unwrap());
}

#[test]
fn a_tensor_that_is_missing_renamed_transposed_or_of_integers_is_named() {
    assert!(damage_is_named(metrale_qwen3_ssm::plugin_module()).unwrap() > 100);
}

#[test]
fn a_checkpoint_without_the_promised_draft_head_loads_with_one_warning() {
    with_golden("qwen3_5_text", |golden| {
        let notes = notes_without(metrale_qwen3_ssm::plugin_module(), golden, "mtp.").unwrap();
        assert!(notes.len() == 1 && notes[0].contains("`mtp`"), "{notes:?}");
    });
}

#[test]
fn a_checkpoint_without_its_vision_tower_loads_as_text_with_one_warning() {
    with_golden("qwen3_5_vl", |golden| {
        let notes = notes_without(metrale_qwen3_ssm::plugin_module(), golden, "model.visual.").unwrap();
        assert!(notes.len() == 1 && notes[0].contains("`vision`"), "{notes:?}");
    });
}
