//! The trained hybrid on the CPU device: text, log-probabilities, perplexity and draft acceptance as recorded with
//! transformers.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_qwen3_ssm::plugin_module;
use metrale_tests::model::Setup;
use metrale_tests::trained_hybrid::{
    drafts_are_accepted_as_recorded, has_the_recorded_perplexity, writes_the_recorded_text,
};

fn setup(kv_dtype: KvDtype) -> Setup {
    Setup::cpu(kv_dtype, Activations::F32)
}

#[test]
fn a_hybrid_writes_the_recorded_text() {
    writes_the_recorded_text(plugin_module(), setup(KvDtype::F32)).unwrap();
}

#[test]
fn a_hybrid_has_the_recorded_perplexity() {
    for kv_dtype in [KvDtype::F32, KvDtype::BF16] {
        let off = has_the_recorded_perplexity(plugin_module(), setup(kv_dtype), 0.005).unwrap();
        println!("perplexity {off:+.5} off the recorded one, KV cache {kv_dtype:?}");
    }
}

#[test]
fn an_mtp_head_is_accepted_as_often_as_recorded() {
    drafts_are_accepted_as_recorded(plugin_module(), setup(KvDtype::F32), 1).unwrap();
}
