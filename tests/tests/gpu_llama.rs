//! The golden models of the llama plugin on the CUDA device. Skipped, loudly, without a GPU.

#![allow(clippy::unwrap_used)]

use metrale_core::lower::plan::ElementType::{BF16, F32};
use metrale_llama::plugin_module;
use metrale_tests::cuda_promises::{self as promises, for_all};
use metrale_tests::{cpu_promises, gpu};

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
