//! Quantised weights on the CPU device: read in their stored size, and computed as their values say.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use std::path::PathBuf;

use metrale_core::weights::ModelSource;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_reference::{Checkpoint, Model, Sequence};
use metrale_tests::cpu::{Chunk, CpuModel};
use metrale_tests::quantized::llama_gguf;

const TOKENS: [i64; 40] = [
    5, 17, 300, 42, 8, 8, 99, 250, 3, 1, 77, 130, 260, 31, 12, 64, 128, 256, 319, 0, 10, 20, 30, 40, 50, 60,
    70, 80, 90, 100, 110, 120, 131, 140, 150, 160, 170, 180, 190, 200,
];

struct File {
    _directory: tempfile::TempDir,
    path: PathBuf,
    product_bytes: u64,
}

fn file() -> File {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let (bytes, product_bytes) = llama_gguf(7).unwrap();
    std::fs::write(&path, bytes).unwrap();
    File { _directory: directory, path, product_bytes }
}

fn device(file: &File, activations: Activations) -> CpuModel {
    let source = ModelSource::open(&file.path).unwrap();
    CpuModel::build(metrale_llama::plugin_module(), &source, TOKENS.len(), KvDtype::F32, activations).unwrap()
}

fn logits(model: &mut CpuModel, token_ids: &[i64]) -> Vec<f32> {
    model.step(&[Chunk::new(0, 0, token_ids)]).unwrap().data().to_vec()
}

#[test]
fn a_step_reads_the_stored_bytes_of_the_weights() {
    let file = file();
    let read = device(&file, Activations::Int8).runner.weight_bytes_per_step() as u64;
    // The packed form pads scales by at most 3 %.
    let allowed = file.product_bytes..=file.product_bytes * 103 / 100;
    assert!(allowed.contains(&read), "a step reads {read} bytes, expected {allowed:?}");
}

#[test]
fn f32_products_match_the_interpreter() {
    let file = file();
    let found = logits(&mut device(&file, Activations::F32), &TOKENS);
    let checkpoint = Checkpoint::read(&file.path).unwrap();
    let model = Model::open(metrale_llama::plugin_module(), &checkpoint, Some(TOKENS.len())).unwrap();
    let expected = model.advance(&mut Sequence::new(), &TOKENS).unwrap().logits;
    let largest = found.iter().zip(expected.data()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let spread = expected.data().iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(spread > 0.1, "logits up to {spread} show nothing");
    assert!(largest < 1e-3, "largest difference {largest}");
}

#[test]
fn int8_products_stay_close_and_ignore_chunking() {
    let file = file();
    let exact = logits(&mut device(&file, Activations::F32), &TOKENS);
    let mut model = device(&file, Activations::Int8);
    let found = logits(&mut model, &TOKENS);
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| x * x).sum::<f32>().sqrt();
    let relative = norm(&mut found.iter().zip(&exact).map(|(a, b)| a - b)) / norm(&mut exact.iter().copied());
    assert!(relative > 0.0 && relative < 0.04, "relative difference {relative}");
    for size in [1, 7, 16] {
        let sizes: Vec<usize> = TOKENS.chunks(size).map(<[i64]>::len).collect();
        assert_eq!(model.in_chunks(&TOKENS, &sizes).unwrap().data(), found, "chunks of {size}");
    }
}
