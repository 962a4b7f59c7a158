//! The trained MiniMax on the CPU device: text, log-probabilities, perplexity as recorded with transformers.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_tests::trained::Trained;
use metrale_tests::trained_promises::{perplexity, writes_the_recorded_text};

const MODEL: &str = "tiny-minimax-m2";

#[test]
fn minimax_m2_writes_the_recorded_text() {
    let reused =
        writes_the_recorded_text(&Trained::open(MODEL).unwrap(), metrale_minimax_m2::plugin_module())
            .unwrap();
    assert!(reused > 0, "no prompt was continued from a cached prefix");
}

#[test]
fn minimax_m2_has_the_recorded_perplexity() {
    let trained = Trained::open(MODEL).unwrap();
    for kv_dtype in [KvDtype::F32, KvDtype::BF16] {
        let (found, expected) = perplexity(&trained, metrale_minimax_m2::plugin_module(), kv_dtype).unwrap();
        println!("perplexity {found:.4}, recorded {expected:.4}, KV cache {kv_dtype:?}");
        assert!((found / expected - 1.0).abs() < 0.005, "perplexity {found}, recorded {expected}");
    }
}
