//! The trained hybrid on the CPU device: text, log-probabilities, perplexity and draft acceptance as recorded with
//! transformers.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use metrale_core::text::Tokenizer;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_tests::cpu::{Chunk, CpuModel};
use metrale_tests::engine::{greedy, run_together, serve};
use metrale_tests::trained::{Trained, list};

/// Log-probabilities of two f32 implementations.
const TOLERANCE: f32 = 2e-3;

fn argmax(logits: &[f32]) -> i64 {
    let best = logits.iter().enumerate().fold(0, |best, (i, v)| if *v > logits[best] { i } else { best });
    best as i64
}

/// Negative log-likelihood of all tokens but the first, given those before each.
fn nll(model: &mut CpuModel, tokens: &[i64]) -> f64 {
    let logits = model.step(&[Chunk::new(0, 0, tokens)]).unwrap();
    let of = |(row, &token): (usize, &i64)| {
        let logits = logits.row(row);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|l| f64::from(l - largest).exp()).sum();
        sum.ln() + f64::from(largest) - f64::from(logits[token as usize])
    };
    tokens[1..].iter().enumerate().map(of).sum()
}

#[test]
fn a_hybrid_writes_the_recorded_text() {
    let trained = Trained::open("tiny-qwen3-next").unwrap();
    let model = trained.load(metrale_qwen3_ssm::plugin_module(), 256, KvDtype::F32).unwrap();
    let engine = serve(model.runner, true, &[]);
    let prompts = trained.golden["prompts"].as_array().unwrap();
    let outputs: Vec<Vec<u32>> = prompts.iter().map(|p| list(&p["output_ids"]).unwrap()).collect();
    let requests: Vec<_> = prompts
        .iter()
        .zip(&outputs)
        .map(|(p, output)| greedy(&list::<u32>(&p["input_ids"]).unwrap(), output.len()))
        .collect();
    // The second time from state snapshots, where a prompt fills a page.
    let mut reused = 0;
    for _ in 0..2 {
        let answers = run_together(&engine, &requests).unwrap();
        for ((answer, output), prompt) in answers.iter().zip(&outputs).zip(prompts) {
            assert_eq!(answer.tokens, *output, "{}", prompt["text"]);
            for (found, expected) in answer.logprobs.iter().zip(prompt["top5"].as_array().unwrap()) {
                let expected = expected["logprobs"][0].as_f64().unwrap() as f32;
                assert!(
                    (found.chosen.logprob - expected).abs() < TOLERANCE,
                    "{found:?}, recorded {expected}"
                );
            }
            reused += answer.num_cached_tokens;
        }
    }
    assert!(reused > 0, "no prompt was continued from a snapshot");
}

#[test]
fn a_hybrid_has_the_recorded_perplexity() {
    let trained = Trained::open("tiny-qwen3-next").unwrap();
    let tokenizer = Tokenizer::from_dir(&trained.directory).unwrap();
    let text = std::fs::read_to_string(trained.directory.join("heldout_lines.txt")).unwrap();
    for kv_dtype in [KvDtype::F32, KvDtype::BF16] {
        let mut model = trained.load(metrale_qwen3_ssm::plugin_module(), 512, kv_dtype).unwrap();
        let (mut sum, mut predicted) = (0.0, 0);
        for line in text.lines() {
            let tokens: Vec<i64> =
                tokenizer.encode(line, false).unwrap().into_iter().map(i64::from).collect();
            sum += nll(&mut model, &tokens);
            predicted += tokens.len() - 1;
        }
        let recorded = &trained.golden["perplexity"];
        assert_eq!(predicted as u64, recorded["predicted_tokens"].as_u64().unwrap());
        let (found, expected) = ((sum / predicted as f64).exp(), recorded["perplexity"].as_f64().unwrap());
        println!("perplexity {found:.4}, recorded {expected:.4}, KV cache {kv_dtype:?}");
        assert!((found / expected - 1.0).abs() < 0.005, "perplexity {found}, recorded {expected}");
    }
}

/// Drafts of length 1: how many of them are accepted per prompt, as golden.json defines it.
#[test]
fn an_mtp_head_is_accepted_as_often_as_recorded() {
    let trained = Trained::open("tiny-qwen3-next").unwrap();
    let recorded = &trained.golden["mtp"];
    let (prompts, outputs): (Vec<Vec<i64>>, Vec<Vec<i64>>) =
        (list(&recorded["prompts"]).unwrap(), list(&recorded["greedy"]).unwrap());
    let num_tokens = recorded["tokens_per_prompt"].as_u64().unwrap() as usize;
    let mut model = trained.load(metrale_qwen3_ssm::plugin_module(), 128, KvDtype::F32).unwrap();
    let mut accepted = Vec::new();
    for (prompt, output) in prompts.iter().zip(&outputs) {
        let tokens = [prompt.as_slice(), output].concat();
        model.step(&[Chunk::new(0, 0, &tokens)]).unwrap();
        let slots = tokens.len() - 1;
        let hidden = model.value("final_hidden", tokens.len()).unwrap().rows(0..slots);
        let (_, logits) = model.mtp(0, Chunk::new(0, 0, &tokens[1..]), &hidden).unwrap();
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
    let expected: Vec<u64> = list(&recorded["draft_lengths"]["1"]["accepted_per_prompt"]).unwrap();
    println!("{} of {} drafts", accepted.iter().sum::<u64>(), expected.iter().sum::<u64>());
    // Close ties may go the other way in other f32 implementations.
    let differing = accepted.iter().zip(&expected).filter(|(a, b)| a != b).count();
    assert!(accepted.len() == expected.len() && differing <= 1, "{accepted:?}, recorded {expected:?}");
}
