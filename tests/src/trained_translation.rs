//! What a device must do with the trained translation model: translations as recorded with transformers.

use anyhow::{Context, Result};
use metrale_core::sched::{BeamParams, EngineHandle, GenerateRequest};
use metrale_plugin_api::abi::PluginModule_Ref;
use serde_json::Value as Json;

use crate::engine::{greedy, run_together, serve};
use crate::model::Setup;
use crate::trained::{Trained, list};

/// How far scores of hypotheses may be off.
const SCORE_TOLERANCE: f64 = 1e-4;

/// Translates every recorded sentence, both directions at once, and gives how many came out otherwise, and of how many.
///
/// # Errors
/// The model cannot be run.
pub fn differing_translations(plugin: PluginModule_Ref, setup: Setup) -> Result<(usize, usize)> {
    let (engine, sentences) = open(plugin, setup)?;
    let (requests, targets) = requests(&sentences, "greedy_ids")?;
    let answers = run_together(&engine, &requests)?;
    let differing = answers.iter().zip(&targets).filter(|(answer, target)| answer.tokens != target[2..]);
    Ok((differing.count(), sentences.len()))
}

/// The same with four beams; a score that is off counts as a difference.
///
/// # Errors
/// The model cannot be run.
pub fn differing_beams(plugin: PluginModule_Ref, setup: Setup) -> Result<(usize, usize)> {
    let (engine, sentences) = open(plugin, setup)?;
    let (mut requests, targets) = requests(&sentences, "beam_ids")?;
    for request in &mut requests {
        request.beams = Some(BeamParams::new(4));
        request.sampling.logprobs = None;
    }
    let answers = run_together(&engine, &requests)?;
    let mut differing = 0;
    for ((answer, target), sentence) in answers.iter().zip(&targets).zip(&sentences) {
        let best = answer.hypotheses.first().context("no hypothesis")?;
        let score = sentence["beam_score"].as_f64().context("no beam_score")?;
        let is_close = (f64::from(best.score) - score).abs() < SCORE_TOLERANCE;
        differing += usize::from(best.tokens != target[2..] || !is_close);
    }
    Ok((differing, sentences.len()))
}

fn open(plugin: PluginModule_Ref, setup: Setup) -> Result<(EngineHandle, Vec<Json>)> {
    let trained = Trained::open("tiny-nllb-eng-spa")?;
    let model = trained.load_on(plugin, 256, setup)?;
    let directions = trained.golden["directions"].as_object().context("no directions")?;
    let sentences = directions.values().filter_map(Json::as_array).flatten().cloned().collect();
    Ok((serve(model.runner, true, &[2]), sentences))
}

/// A request per sentence, and the recorded target, which starts with the decoder's start token and a language.
fn requests(sentences: &[Json], recorded: &str) -> Result<(Vec<GenerateRequest>, Vec<Vec<u32>>)> {
    let targets: Vec<Vec<u32>> = sentences.iter().map(|s| list(&s[recorded])).collect::<Result<_>>()?;
    let request = |(sentence, target): (&Json, &Vec<u32>)| -> Result<GenerateRequest> {
        Ok(greedy(&target[..2], 198).with_source(list(&sentence["input_ids"])?))
    };
    let requests = sentences.iter().zip(&targets).map(request).collect::<Result<_>>()?;
    Ok((requests, targets))
}
