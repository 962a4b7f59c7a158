//! What a device must do with the trained hybrid: text, log-probabilities, perplexity and draft acceptance as recorded with
//! transformers.

use anyhow::{Context, Result, ensure};
use metrale_core::text::Tokenizer;
use metrale_plugin_api::abi::PluginModule_Ref;
use serde_json::Value as Json;

use crate::engine::{greedy, run_together, serve};
use crate::model::{Chunk, DeviceModel, Setup};
use crate::trained::{Trained, list};

const MODEL: &str = "tiny-qwen3-next";
/// Log-probabilities of two f32 implementations.
const TOLERANCE: f32 = 2e-3;

fn argmax(logits: &[f32]) -> i64 {
    let best = logits.iter().enumerate().fold(0, |best, (i, v)| if *v > logits[best] { i } else { best });
    best as i64
}

fn array(json: &Json) -> Result<&Vec<Json>> {
    json.as_array().context("golden.json lacks a list")
}

/// Negative log-likelihood of all tokens but the first, given those before each.
fn nll(model: &mut DeviceModel, tokens: &[i64]) -> Result<f64> {
    let logits = model.step(&[Chunk::new(0, 0, tokens)])?;
    let of = |(row, &token): (usize, &i64)| {
        let logits = logits.row(row);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|l| f64::from(l - largest).exp()).sum();
        sum.ln() + f64::from(largest) - f64::from(logits[token as usize])
    };
    Ok(tokens[1..].iter().enumerate().map(of).sum())
}

/// Greedy continuations of all prompts at once, from the start and from state snapshots.
///
/// # Errors
/// They are not what was recorded.
pub fn writes_the_recorded_text(plugin: PluginModule_Ref, setup: Setup) -> Result<()> {
    let trained = Trained::open(MODEL)?;
    let model = trained.load_on(plugin, 256, setup)?;
    let engine = serve(model.runner, true, &[]);
    let prompts = array(&trained.golden["prompts"])?;
    let outputs: Vec<Vec<u32>> = prompts.iter().map(|p| list(&p["output_ids"])).collect::<Result<_>>()?;
    let requests = prompts
        .iter()
        .zip(&outputs)
        .map(|(p, output)| Ok(greedy(&list::<u32>(&p["input_ids"])?, output.len())))
        .collect::<Result<Vec<_>>>()?;
    // The second time from state snapshots, where a prompt fills a page.
    let mut reused = 0;
    for _ in 0..2 {
        let answers = run_together(&engine, &requests)?;
        for ((answer, output), prompt) in answers.iter().zip(&outputs).zip(prompts) {
            ensure!(
                answer.tokens == *output,
                "{}: found {:?}, recorded {output:?}",
                prompt["text"],
                answer.tokens
            );
            for (found, expected) in answer.logprobs.iter().zip(array(&prompt["top5"])?) {
                let expected = expected["logprobs"][0].as_f64().context("no log-probability")? as f32;
                let difference = (found.chosen.logprob - expected).abs();
                ensure!(difference < TOLERANCE, "{found:?}, recorded {expected}");
            }
            reused += answer.num_cached_tokens;
        }
    }
    ensure!(reused > 0, "no prompt was continued from a snapshot");
    Ok(())
}

/// Perplexity of held-out lines, in thousandths off the recorded one.
///
/// # Errors
/// It is off by more than `tolerance`.
pub fn has_the_recorded_perplexity(plugin: PluginModule_Ref, setup: Setup, tolerance: f64) -> Result<f64> {
    let trained = Trained::open(MODEL)?;
    let tokenizer = Tokenizer::from_dir(&trained.directory)?;
    let text = std::fs::read_to_string(trained.directory.join("heldout_lines.txt"))?;
    let mut model = trained.load_on(plugin, 512, setup)?;
    let (mut sum, mut predicted) = (0.0, 0);
    for line in text.lines() {
        let tokens: Vec<i64> = tokenizer.encode(line, false)?.into_iter().map(i64::from).collect();
        sum += nll(&mut model, &tokens)?;
        predicted += tokens.len() - 1;
    }
    let recorded = &trained.golden["perplexity"];
    ensure!(recorded["predicted_tokens"].as_u64() == Some(predicted as u64), "{predicted} tokens");
    let expected = recorded["perplexity"].as_f64().context("no perplexity")?;
    let found = (sum / f64::from(predicted as u32)).exp();
    ensure!((found / expected - 1.0).abs() < tolerance, "perplexity {found}, recorded {expected}");
    Ok(found / expected - 1.0)
}

/// Drafts of length 1: how many of them are accepted per prompt, as golden.json defines it.
///
/// # Errors
/// More than `allowed` prompts differ from what was recorded.
pub fn drafts_are_accepted_as_recorded(plugin: PluginModule_Ref, setup: Setup, allowed: usize) -> Result<()> {
    let trained = Trained::open(MODEL)?;
    let recorded = &trained.golden["mtp"];
    let (prompts, outputs): (Vec<Vec<i64>>, Vec<Vec<i64>>) =
        (list(&recorded["prompts"])?, list(&recorded["greedy"])?);
    let num_tokens = recorded["tokens_per_prompt"].as_u64().context("no tokens_per_prompt")? as usize;
    let mut model = trained.load_on(plugin, 128, setup)?;
    let mut accepted = Vec::new();
    for (prompt, output) in prompts.iter().zip(&outputs) {
        let tokens = [prompt.as_slice(), output].concat();
        model.step(&[Chunk::new(0, 0, &tokens)])?;
        let slots = tokens.len() - 1;
        let hidden = model.value("final_hidden", tokens.len())?.rows(0..slots);
        let (_, logits) = model.mtp(0, Chunk::new(0, 0, &tokens[1..]), &hidden)?;
        // The last accepted token is at `p`; slot p − 1 drafts the token at p + 1.
        let (mut p, mut emitted, mut count) = (prompt.len(), 0, 0);
        while emitted < num_tokens && p + 1 < tokens.len() {
            let hit = usize::from(argmax(logits.row(p - 1)) == tokens[p + 1]);
            count += hit as u64;
            p += 1 + hit;
            emitted += 1 + hit;
        }
        accepted.push(count);
    }
    let expected: Vec<u64> = list(&recorded["draft_lengths"]["1"]["accepted_per_prompt"])?;
    // Close ties may go the other way in other implementations.
    let differing = accepted.iter().zip(&expected).filter(|(a, b)| a != b).count();
    let same = accepted.len() == expected.len() && differing <= allowed;
    ensure!(same, "{accepted:?}, recorded {expected:?}");
    Ok(())
}
