//! The trained GLM on the CPU device: text, log-probabilities, perplexity and draft acceptance as recorded with transformers.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_tests::trained::Trained;
use metrale_tests::trained_promises::{accepted_drafts, perplexity, writes_the_recorded_text};

const MODEL: &str = "tiny-glm4-moe";

#[test]
fn glm4_moe_writes_the_recorded_text() {
    let reused =
        writes_the_recorded_text(&Trained::open(MODEL).unwrap(), metrale_glm_mtp::plugin_module()).unwrap();
    assert!(reused > 0, "no prompt was continued from a cached prefix");
}

#[test]
fn glm4_moe_has_the_recorded_perplexity() {
    let trained = Trained::open(MODEL).unwrap();
    for kv_dtype in [KvDtype::F32, KvDtype::BF16] {
        let (found, expected) = perplexity(&trained, metrale_glm_mtp::plugin_module(), kv_dtype).unwrap();
        println!("perplexity {found:.4}, recorded {expected:.4}, KV cache {kv_dtype:?}");
        assert!((found / expected - 1.0).abs() < 0.005, "perplexity {found}, recorded {expected}");
    }
}

#[test]
fn drafts_are_accepted_as_often_as_recorded() {
    let trained = Trained::open(MODEL).unwrap();
    for draft_length in 1..=3 {
        let (found, expected) =
            accepted_drafts(&trained, metrale_glm_mtp::plugin_module(), draft_length).unwrap();
        println!("drafts of {draft_length}: {} accepted, recorded {}", sum(&found), sum(&expected));
        // Close ties may go the other way in other f32 implementations.
        let differing = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        assert!(found.len() == expected.len() && differing <= 1, "{found:?}, recorded {expected:?}");
    }
}

fn sum(counts: &[u64]) -> u64 {
    counts.iter().sum()
}
