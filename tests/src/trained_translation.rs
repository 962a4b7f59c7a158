//! What a device must do with the trained translation model: greedy translations as recorded with transformers.

use anyhow::{Context, Result};
use metrale_plugin_api::abi::PluginModule_Ref;

use crate::engine::{greedy, run_together, serve};
use crate::model::Setup;
use crate::trained::{Trained, list};

/// Translates every recorded sentence, and gives how many came out otherwise, and of how many.
///
/// # Errors
/// The model cannot be run.
pub fn differing_translations(plugin: PluginModule_Ref, setup: Setup) -> Result<(usize, usize)> {
    let trained = Trained::open("tiny-nllb-eng-spa")?;
    let model = trained.load_on(plugin, 256, setup)?;
    let engine = serve(model.runner, true, &[2]);
    let directions = trained.golden["directions"].as_object().context("no directions")?;
    let sentences: Vec<_> = directions.values().filter_map(|s| s.as_array()).flatten().collect();
    let targets: Vec<Vec<u32>> = sentences.iter().map(|s| list(&s["greedy_ids"])).collect::<Result<_>>()?;
    let requests = sentences
        .iter()
        .zip(&targets)
        // The decoder's start token, then the language of the target.
        .map(|(s, target)| Ok(greedy(&target[..2], 200).with_source(list(&s["input_ids"])?)))
        .collect::<Result<Vec<_>>>()?;
    let answers = run_together(&engine, &requests)?;
    let differing = answers.iter().zip(&targets).filter(|(answer, target)| answer.tokens != target[2..]);
    Ok((differing.count(), sentences.len()))
}
