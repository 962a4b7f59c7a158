//! The trained translation model on the CPU device: greedy translations as recorded with transformers.

#![allow(clippy::unwrap_used)]

use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_tests::engine::{greedy, run_together, serve};
use metrale_tests::trained::{Trained, list};

#[test]
fn sentences_are_translated_as_recorded() {
    let trained = Trained::open("tiny-nllb-eng-spa").unwrap();
    let model = trained.load(metrale_nllb::plugin_module(), 256, KvDtype::F32).unwrap();
    let engine = serve(model.runner, true, &[2]);
    let directions = trained.golden["directions"].as_object().unwrap();
    let sentences: Vec<_> = directions.values().flat_map(|s| s.as_array().unwrap()).collect();
    assert!(sentences.len() >= 40, "{} sentences", sentences.len());
    let targets: Vec<Vec<u32>> = sentences.iter().map(|s| list(&s["greedy_ids"]).unwrap()).collect();
    let requests: Vec<_> = sentences
        .iter()
        .zip(&targets)
        // The decoder's start token, then the language of the target.
        .map(|(s, target)| greedy(&target[..2], 200).with_source(list(&s["input_ids"]).unwrap()))
        .collect();
    let answers = run_together(&engine, &requests).unwrap();
    for ((answer, target), sentence) in answers.iter().zip(&targets).zip(&sentences) {
        assert_eq!(answer.tokens, target[2..], "{}", sentence["source"]);
    }
}
