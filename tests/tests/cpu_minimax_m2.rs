//! The minimax-m2 plugin on the CPU device, against golden models.

#![allow(clippy::unwrap_used)]

use metrale_kernels::cpu::kv_cache::KvDtype::{BF16, F32};
use metrale_tests::cpu_promises::{self, for_all};

macro_rules! promises {
    ($($promise:ident: $kv_dtype:ident => $check:ident;)*) => {$(
        #[test]
        fn $promise() {
            for_all(metrale_minimax_m2::plugin_module(), $kv_dtype, cpu_promises::$check).unwrap();
        }
    )*};
}

promises! {
    logits_and_hidden_states_match_transformers: F32 => whole_pass_matches;
    a_bf16_cache_stays_within_twice_the_recorded_bf16_bound: BF16 => bf16_cache_stays_in_bounds;
    any_chunking_gives_the_same_bits: F32 => any_chunking_gives_the_same_bits;
    rows_of_other_sequences_do_not_change_a_bit: F32 => rows_of_others_do_not_change_a_bit;
    an_abandoned_sequence_leaves_nothing: F32 => an_abandoned_sequence_leaves_nothing;
    a_step_enters_no_plugin: F32 => a_step_enters_no_plugin;
}

#[test]
fn a_tensor_that_is_missing_renamed_transposed_or_of_integers_is_named() {
    assert!(metrale_tests::damaged::damage_is_named(metrale_minimax_m2::plugin_module()).unwrap() > 100);
}
