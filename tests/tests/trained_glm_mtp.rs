//! The trained GLM on the CPU device, against what was recorded with transformers.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use metrale_glm_mtp::plugin_module;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_tests::model::Setup;
use metrale_tests::trained::Trained;
use metrale_tests::trained_promises::{
    drafts_are_accepted_as_recorded, has_the_recorded_perplexity, writes_the_recorded_text,
};

fn trained() -> Trained {
    Trained::open("tiny-glm4-moe").unwrap()
}

fn setup(kv_dtype: KvDtype) -> Setup {
    Setup::cpu(kv_dtype, Activations::F32)
}

#[test]
fn glm4_moe_writes_the_recorded_text() {
    writes_the_recorded_text(&trained(), plugin_module(), setup(KvDtype::F32)).unwrap();
}

#[test]
fn glm4_moe_has_the_recorded_perplexity() {
    for kv_dtype in [KvDtype::F32, KvDtype::BF16] {
        let off = has_the_recorded_perplexity(&trained(), plugin_module(), setup(kv_dtype), 0.005).unwrap();
        println!("perplexity {off:+.5} off the recorded one, KV cache {kv_dtype:?}");
    }
}

#[test]
fn an_mtp_head_is_accepted_as_often_as_recorded() {
    for draft_length in 1..=3 {
        drafts_are_accepted_as_recorded(&trained(), plugin_module(), setup(KvDtype::F32), draft_length, 1)
            .unwrap();
    }
}
