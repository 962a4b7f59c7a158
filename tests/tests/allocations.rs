//! A step allocates nothing once the device has seen its shape.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use metrale_core::exec::{Batch, BatchSeq, BlockId, Logits, StateSlot, StepRunner};
use metrale_core::weights::ModelSource;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_tests::allocations::{Counting, of_fifty};
use metrale_tests::cpu::CpuModel;
use metrale_tests::quantized::llama_gguf;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MAX_LEN: usize = 64;

/// Rows `num_computed..num_computed + num_tokens` of sequence `index`.
fn seq(index: u32, num_computed: usize, num_tokens: usize) -> BatchSeq {
    let block_table = (0..4).map(|i| BlockId(1 + index * 4 + i)).collect();
    let state_slot = StateSlot(index);
    BatchSeq {
        num_tokens,
        num_drafts: 0,
        num_accepted: 0,
        num_computed,
        block_table,
        state_slot,
        source: None,
        images: None,
    }
}

fn batch(seqs: Vec<BatchSeq>) -> Batch {
    let rows: usize = seqs.iter().map(|s| s.num_tokens).sum();
    Batch { token_ids: (0..rows as u32).collect(), seqs, logits_rows: vec![0, rows - 1] }
}

// One test only: a second one would allocate meanwhile.
#[test]
fn steps_allocate_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, llama_gguf(3).unwrap().0).unwrap();
    let source = ModelSource::open(&path).unwrap();
    for activations in [Activations::Int8, Activations::F32] {
        let plugin = metrale_llama::plugin_module();
        let mut model = CpuModel::build(plugin, &source, MAX_LEN, KvDtype::BF16, activations).unwrap();
        let batches = [
            ("prefill", batch(vec![seq(0, 0, 40)])),
            ("decode", batch(vec![seq(0, 40, 1)])),
            ("decode of four", batch((0..4).map(|i| seq(i, 41, 1)).collect())),
            ("prefill beside decode", batch(vec![seq(0, 42, 1), seq(1, 0, 33), seq(2, 17, 5)])),
        ];
        let mut logits = Logits::default();
        for (_, batch) in &batches {
            model.runner.step(batch, &mut logits).unwrap();
        }
        for (name, batch) in &batches {
            let allocated = of_fifty(|| model.runner.step(batch, &mut logits).unwrap());
            assert!(allocated[25..].iter().all(|&n| n == 0), "{name}, {activations:?}: {allocated:?}");
        }
    }
}
