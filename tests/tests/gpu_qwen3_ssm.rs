//! The golden and trained models of the qwen3-ssm plugin on the CUDA device. Skipped, loudly, without a GPU.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use metrale_core::lower::plan::ElementType::{BF16, F32};
use metrale_qwen3_ssm::plugin_module;
use metrale_tests::cuda_promises::{self as promises, for_all};
use metrale_tests::model::Setup;
use metrale_tests::trained::Trained;
use metrale_tests::{cpu_promises, gpu, trained_promises};

macro_rules! promises {
    ($($name:ident: $check:expr;)*) => {$(
        #[test]
        fn $name() {
            if gpu::is_here() {
                for of in [F32, BF16] {
                    for_all(plugin_module(), of, |golden, model| $check(golden, model, of)).unwrap();
                }
            }
        }
    )*};
}

promises! {
    whole_passes_match_transformers: promises::whole_pass_is_close;
    chunks_and_decoding_match_transformers: promises::chunks_are_close;
    batches_match_transformers: promises::batches_are_close;
    snapshots_continue: promises::snapshots_continue;
}

#[test]
fn values_between_layers_match_transformers() {
    if gpu::is_here() {
        for_all(plugin_module(), F32, cpu_promises::whole_pass_matches).unwrap();
    }
}

#[test]
fn recorded_steps_keep_every_bit() {
    if gpu::is_here() {
        promises::recorded_steps_keep_every_bit(plugin_module(), F32).unwrap();
        promises::recorded_steps_keep_every_bit(plugin_module(), BF16).unwrap();
    }
}

#[test]
fn a_step_enters_no_plugin() {
    if gpu::is_here() {
        for_all(plugin_module(), BF16, cpu_promises::a_step_enters_no_plugin).unwrap();
    }
}

#[test]
fn the_mtp_head_matches_transformers() {
    if gpu::is_here() {
        for_all(plugin_module(), F32, promises::mtp_is_close).unwrap();
    }
}

fn trained() -> Trained {
    Trained::open("tiny-qwen3-next").unwrap()
}

#[test]
fn a_trained_hybrid_writes_the_recorded_text() {
    if gpu::is_here() {
        trained_promises::writes_the_recorded_text(&trained(), plugin_module(), Setup::cuda(F32)).unwrap();
    }
}

#[test]
fn a_trained_hybrid_has_the_recorded_perplexity() {
    if gpu::is_here() {
        for of in [F32, BF16] {
            let off = trained_promises::has_the_recorded_perplexity(
                &trained(),
                plugin_module(),
                Setup::cuda(of),
                0.01,
            )
            .unwrap();
            println!("perplexity {off:+.5} off the recorded one, activations {of:?}");
        }
    }
}

#[test]
fn drafts_of_a_trained_hybrid_are_accepted_as_recorded() {
    if gpu::is_here() {
        trained_promises::drafts_are_accepted_as_recorded(
            &trained(),
            plugin_module(),
            Setup::cuda(F32),
            1,
            1,
        )
        .unwrap();
    }
}
