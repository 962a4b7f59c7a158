//! The trained translation model on the CPU device: translations as recorded with transformers.

#![allow(clippy::unwrap_used)]

use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_tests::model::Setup;
use metrale_tests::trained_translation::{differing_beams, differing_translations};

#[test]
fn sentences_are_translated_as_recorded() {
    let setup = Setup::cpu(KvDtype::F32, Activations::F32);
    let (differing, all) = differing_translations(metrale_nllb::plugin_module(), setup).unwrap();
    assert!(differing == 0 && all >= 40, "{differing} of {all} sentences");
}

#[test]
fn beam_search_translates_as_recorded() {
    let setup = Setup::cpu(KvDtype::F32, Activations::F32);
    let (differing, all) = differing_beams(metrale_nllb::plugin_module(), setup).unwrap();
    assert!(differing == 0 && all >= 40, "{differing} of {all} sentences");
}
