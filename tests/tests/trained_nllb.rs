//! The trained translation model on the CPU device: translations as recorded with transformers.

#![allow(clippy::unwrap_used)]

use metrale_core::sched::{BeamParams, GenerateRequest};
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_tests::engine::{greedy, run_together, serve};
use metrale_tests::trained::{Trained, list};
use serde_json::Value;

/// Sentences of both directions.
fn sentences(golden: &Value) -> Vec<&Value> {
    let directions = golden["directions"].as_object().unwrap();
    let sentences: Vec<_> = directions.values().flat_map(|s| s.as_array().unwrap()).collect();
    assert!(sentences.len() >= 40, "{} sentences", sentences.len());
    sentences
}

/// The request for a sentence whose translation starts like `target`: the decoder's start token, then a language.
fn request(sentence: &Value, target: &[u32]) -> GenerateRequest {
    let mut request = greedy(&target[..2], 198).with_source(list(&sentence["input_ids"]).unwrap());
    request.sampling.logprobs = None;
    request
}

#[test]
fn sentences_are_translated_as_recorded() {
    let trained = Trained::open("tiny-nllb-eng-spa").unwrap();
    let model = trained.load(metrale_nllb::plugin_module(), 256, KvDtype::F32).unwrap();
    let engine = serve(model.runner, true, &[2]);
    let sentences = sentences(&trained.golden);
    let targets: Vec<Vec<u32>> = sentences.iter().map(|s| list(&s["greedy_ids"]).unwrap()).collect();
    let requests: Vec<_> = sentences.iter().zip(&targets).map(|(s, target)| request(s, target)).collect();
    let answers = run_together(&engine, &requests).unwrap();
    for ((answer, target), sentence) in answers.iter().zip(&targets).zip(&sentences) {
        assert_eq!(answer.tokens, target[2..], "{}", sentence["source"]);
    }
}

#[test]
fn beam_search_translates_as_recorded() {
    let trained = Trained::open("tiny-nllb-eng-spa").unwrap();
    let model = trained.load(metrale_nllb::plugin_module(), 256, KvDtype::F32).unwrap();
    let engine = serve(model.runner, true, &[2]);
    let sentences = sentences(&trained.golden);
    let targets: Vec<Vec<u32>> = sentences.iter().map(|s| list(&s["beam_ids"]).unwrap()).collect();
    let requests: Vec<_> = sentences
        .iter()
        .zip(&targets)
        .map(|(s, target)| request(s, target).with_beams(BeamParams::new(4)))
        .collect();
    let answers = run_together(&engine, &requests).unwrap();
    for ((answer, target), sentence) in answers.iter().zip(&targets).zip(&sentences) {
        let best = &answer.hypotheses[0];
        assert_eq!(best.tokens, target[2..], "{}", sentence["source"]);
        let score = sentence["beam_score"].as_f64().unwrap() as f32;
        assert!((best.score - score).abs() < 1e-4, "{}: {}", sentence["source"], best.score);
    }
}
