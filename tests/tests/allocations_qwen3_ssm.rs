//! Verifying drafts and making new ones allocates nothing once the device has seen the shapes.

#![allow(clippy::unwrap_used)]

use metrale_core::exec::{Batch, BatchSeq, BlockId, DraftBatch, Logits, ModelRunner, StateSlot, StepRunner};
use metrale_core::factory::{build_runner, open_attrs};
use metrale_core::weights::ModelSource;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_tests::allocations::{Counting, of_fifty};
use metrale_tests::cpu::{Setup, options};
use metrale_tests::trained::Trained;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NUM_SEQS: u32 = 4;
const PROMPT: usize = 20;
const NUM_DRAFTS: usize = 3;

/// Rows of every sequence from `num_computed` on, with drafts behind them.
fn batch(num_computed: usize, num_known: usize, num_drafts: usize, num_accepted: usize) -> Batch {
    let num_tokens = num_known + num_drafts;
    let seq = |index: u32| BatchSeq {
        num_tokens,
        num_drafts,
        num_accepted,
        num_computed,
        block_table: (0..4).map(|i| BlockId(1 + index * 4 + i)).collect(),
        state_slot: StateSlot(index),
        source: None,
        images: None,
    };
    let rows = NUM_SEQS as usize * num_tokens;
    Batch {
        token_ids: (0..rows as u32).collect(),
        seqs: (0..NUM_SEQS).map(seq).collect(),
        logits_rows: (0..rows).filter(|row| row % num_tokens + num_drafts + 1 >= num_tokens).collect(),
    }
}

/// The hybrid without experts (their grouping still allocates), of dummy weights.
fn dense_hybrid() -> ModelRunner {
    let trained = Trained::open("tiny-qwen3-next").unwrap();
    let config = std::fs::read(trained.directory.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["num_experts"] = 0.into();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let source = ModelSource::open_config(directory.path()).unwrap();
    let options = options(64, Setup::cpu(KvDtype::F32, Activations::F32));
    let attrs = open_attrs(&source, options.max_model_len);
    build_runner(metrale_qwen3_ssm::plugin_module(), &attrs, None, &options).unwrap().runner
}

// One test only: a second one would allocate meanwhile.
#[test]
fn speculative_steps_allocate_nothing() {
    let mut runner = dense_hybrid();
    let (mut logits, mut drafts) = (Logits::default(), Vec::new());
    runner.step(&batch(0, PROMPT, 0, 0), &mut logits).unwrap();
    // Two of three drafts are right, again and again at the same place.
    let verify = batch(PROMPT, 1, NUM_DRAFTS, 2);
    let mut slots = batch(PROMPT, 3, 0, 0);
    slots.logits_rows = (0..NUM_SEQS as usize).map(|i| i * 3 + 2).collect();
    let hidden_rows = (0..slots.num_tokens()).map(|row| row / 3 * (1 + NUM_DRAFTS) + row % 3).collect();
    let ask = DraftBatch { slots, hidden_rows, num_drafts: vec![NUM_DRAFTS; NUM_SEQS as usize] };
    runner.step(&batch(PROMPT, 1, NUM_DRAFTS, 0), &mut logits).unwrap();
    let allocated = of_fifty(|| {
        runner.step(&verify, &mut logits).unwrap();
        runner.drafter().unwrap().draft(&ask, &mut drafts).unwrap();
    });
    assert_eq!(drafts.len(), NUM_DRAFTS * NUM_SEQS as usize);
    assert!(allocated[25..].iter().all(|&n| n == 0), "{allocated:?}");
}
