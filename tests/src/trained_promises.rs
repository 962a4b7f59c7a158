//! What a device must do with a trained checkpoint: text, log-probabilities, perplexity and draft acceptance as recorded
//! with transformers.

use anyhow::{Context, Result, ensure};
use metrale_core::text::Tokenizer;
use metrale_plugin_api::abi::PluginModule_Ref;
use metrale_reference::Tensor;

use crate::engine::{greedy, run_together, serve};
use crate::model::{Chunk, DeviceModel, Setup};
use crate::trained::{Trained, list};

/// Log-probabilities of two f32 implementations.
const TOLERANCE: f32 = 2e-3;

/// Serves all prompts at once, twice: the second time from cached prefixes, where a prompt fills a page.
///
/// # Errors
/// A token or the log-probability of one differs from what was recorded, or no prefix was continued.
pub fn writes_the_recorded_text(trained: &Trained, plugin: PluginModule_Ref, setup: Setup) -> Result<()> {
    let engine = serve(trained.load_on(plugin, 256, setup)?.runner, true, &[]);
    let prompts = trained.golden["prompts"].as_array().context("golden.json has no prompts")?;
    let outputs = prompts.iter().map(|p| list::<u32>(&p["output_ids"])).collect::<Result<Vec<_>>>()?;
    let request = |(prompt, output): (&serde_json::Value, &Vec<u32>)| {
        Ok(greedy(&list::<u32>(&prompt["input_ids"])?, output.len()))
    };
    let requests = prompts.iter().zip(&outputs).map(request).collect::<Result<Vec<_>>>()?;
    let mut reused = 0;
    for _ in 0..2 {
        for ((answer, output), prompt) in run_together(&engine, &requests)?.iter().zip(&outputs).zip(prompts)
        {
            ensure!(answer.tokens == *output, "{}: {:?}, recorded {output:?}", prompt["text"], answer.tokens);
            let recorded = prompt["top5"].as_array().context("golden.json has no top5")?;
            for (found, expected) in answer.logprobs.iter().zip(recorded) {
                let expected = expected["logprobs"][0].as_f64().context("no log-probability")? as f32;
                let difference = (found.chosen.logprob - expected).abs();
                ensure!(difference < TOLERANCE, "{found:?}, recorded {expected}");
            }
            reused += answer.num_cached_tokens;
        }
    }
    ensure!(reused > 0, "no prompt was continued from a cached prefix");
    Ok(())
}

/// Perplexity of the held-out lines, each on its own, relative to the recorded one, less 1.
///
/// # Errors
/// It is off by more than `tolerance`.
pub fn has_the_recorded_perplexity(
    trained: &Trained,
    plugin: PluginModule_Ref,
    setup: Setup,
    tolerance: f64,
) -> Result<f64> {
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
    let expected = recorded["perplexity"].as_f64().context("golden.json has no perplexity")?;
    let found = (sum / predicted as f64).exp();
    ensure!((found / expected - 1.0).abs() < tolerance, "perplexity {found}, recorded {expected}");
    Ok(found / expected - 1.0)
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

/// How many drafts of a length are accepted for each prompt, as golden.json defines it.
///
/// # Errors
/// More than `allowed` prompts differ from what was recorded.
pub fn drafts_are_accepted_as_recorded(
    trained: &Trained,
    plugin: PluginModule_Ref,
    setup: Setup,
    draft_length: usize,
    allowed: usize,
) -> Result<()> {
    let recorded = &trained.golden["mtp"];
    let (prompts, outputs): (Vec<Vec<i64>>, Vec<Vec<i64>>) =
        (list(&recorded["prompts"])?, list(&recorded["greedy"])?);
    let num_tokens = recorded["tokens_per_prompt"].as_u64().context("no tokens_per_prompt")? as usize;
    let mut model = trained.load_on(plugin, 128, setup)?;
    let mut accepted = Vec::new();
    for (prompt, output) in prompts.iter().zip(&outputs) {
        let tokens = [prompt.as_slice(), output].concat();
        let mut drafter = Drafter::new(&mut model, &tokens)?;
        // The last accepted token is at `p`.
        let (mut p, mut emitted, mut count) = (prompt.len(), 0, 0);
        while emitted < num_tokens && p + 1 < tokens.len() {
            let hits = drafter.hits(p, draft_length)?;
            count += hits as u64;
            p += 1 + hits;
            emitted += 1 + hits;
        }
        accepted.push(count);
    }
    let expected: Vec<u64> =
        list(&recorded["draft_lengths"][draft_length.to_string()]["accepted_per_prompt"])?;
    // Close ties may go the other way in other implementations.
    let differing = accepted.iter().zip(&expected).filter(|(a, b)| a != b).count();
    let same = accepted.len() == expected.len() && differing <= allowed;
    ensure!(same, "drafts of {draft_length}: {accepted:?}, recorded {expected:?}");
    Ok(())
}

/// An MTP head over one sequence that is known to its end.
struct Drafter<'a> {
    model: &'a mut DeviceModel,
    tokens: &'a [i64],
    /// Of the trunk, for every slot.
    hidden: Tensor,
    /// What the head makes of `hidden`: what a chained step is fed with, and logits.
    recycled: Tensor,
    logits: Tensor,
}

impl<'a> Drafter<'a> {
    fn new(model: &'a mut DeviceModel, tokens: &'a [i64]) -> Result<Self> {
        model.step(&[Chunk::new(0, 0, tokens)])?;
        let hidden = model.value("final_hidden", tokens.len())?.rows(0..tokens.len() - 1);
        let (recycled, logits) = model.mtp(0, Chunk::new(0, 0, &tokens[1..]), &hidden)?;
        Ok(Self { model, tokens, hidden, recycled, logits })
    }

    /// How many of the drafts after position `p` are the tokens that follow. Slot p − 1 makes the first; each further one
    /// comes from the head's own output and the draft before it, in the next slot.
    fn hits(&mut self, p: usize, draft_length: usize) -> Result<usize> {
        let (mut hits, mut draft) = (0, argmax(self.logits.row(p - 1)));
        let mut recycled = self.recycled.rows(p - 1..p);
        while self.tokens.get(p + 1 + hits) == Some(&draft) {
            hits += 1;
            if hits == draft_length {
                break;
            }
            let (next, logits) = self.model.mtp(0, Chunk::new(0, p + hits - 1, &[draft]), &recycled)?;
            (recycled, draft) = (next, argmax(logits.row(0)));
        }
        // The head's slots hold what the trunk says again.
        let rewritten = p..(p + hits).min(self.hidden.shape()[0]);
        if !rewritten.is_empty() {
            let next_ids = &self.tokens[1..][rewritten.clone()];
            self.model.mtp(0, Chunk::new(0, p, next_ids), &self.hidden.rows(rewritten))?;
        }
        Ok(hits)
    }
}

fn argmax(logits: &[f32]) -> i64 {
    let best = logits.iter().enumerate().fold(0, |best, (i, v)| if *v > logits[best] { i } else { best });
    best as i64
}
