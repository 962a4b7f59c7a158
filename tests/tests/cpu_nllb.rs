//! The nllb plugin on the CPU device, against golden models.

#![allow(clippy::unwrap_used)]

use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_tests::cpu::CpuModel;
use metrale_tests::cpu_promises::for_all;
use metrale_tests::cpu_translation;
use metrale_tests::golden::Goldens;

macro_rules! promises {
    ($($promise:ident => $check:ident;)*) => {$(
        #[test]
        fn $promise() {
            for_all(metrale_nllb::plugin_module(), KvDtype::F32, cpu_translation::$check).unwrap();
        }
    )*};
}

promises! {
    encoder_and_decoder_match_transformers => translations_match;
    any_chunking_gives_the_same_bits => any_chunking_gives_the_same_bits;
    rows_of_other_sequences_do_not_change_a_bit => rows_of_others_do_not_change_a_bit;
    an_abandoned_translation_leaves_nothing => an_abandoned_translation_leaves_nothing;
}

#[test]
fn a_tensor_that_is_missing_renamed_transposed_or_of_integers_is_named() {
    assert!(metrale_tests::damaged::damage_is_named(metrale_nllb::plugin_module()).unwrap() > 100);
}

#[test]
fn beam_searches_match_transformers() {
    let plugin = metrale_nllb::plugin_module();
    for golden in Goldens::of(plugin).unwrap().models {
        let model = CpuModel::open(plugin, &golden, KvDtype::F32).unwrap();
        cpu_translation::beam_searches_match(&golden, model).unwrap();
    }
}
