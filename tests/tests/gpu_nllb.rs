//! The golden and trained models of the nllb plugin on the CUDA device. Skipped, loudly, without a GPU.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use metrale_core::lower::plan::ElementType::{BF16, F32};
use metrale_nllb::plugin_module;
use metrale_tests::cuda_promises::for_all;
use metrale_tests::model::Setup;
use metrale_tests::trained_translation::{differing_beams, differing_translations};
use metrale_tests::{cpu_translation, gpu};

#[test]
fn translations_match_transformers() {
    if gpu::is_here() {
        for_all(plugin_module(), F32, cpu_translation::translations_match).unwrap();
        for_all(plugin_module(), F32, cpu_translation::chunks_match).unwrap();
    }
}

#[test]
fn trained_translations_are_as_recorded() {
    if gpu::is_here() {
        let (differing, all) = differing_translations(plugin_module(), Setup::cuda(F32)).unwrap();
        assert!(differing == 0 && all >= 40, "{differing} of {all} sentences");
        // Close ties may go the other way in bf16.
        let (differing, _) = differing_translations(plugin_module(), Setup::cuda(BF16)).unwrap();
        println!("{differing} of {all} sentences differ in bf16");
        assert!(10 * differing <= all, "{differing} of {all} sentences");
    }
}

#[test]
fn trained_beam_searches_are_as_recorded() {
    if gpu::is_here() {
        let (differing, all) = differing_beams(plugin_module(), Setup::cuda(F32)).unwrap();
        assert!(differing == 0 && all >= 40, "{differing} of {all} sentences");
    }
}
