//! Speculative decoding with the trained hybrid: the text of one token at a time, accepted as often as recorded.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};

use metrale_core::EngineError;
use metrale_core::exec::{
    Batch, Drafter, Logits, ModelRunner, RunnerLimits, StateSlot, StateSnapshots, StepRunner,
};
use metrale_core::factory::{MtpHead, RunnerOptions};
use metrale_core::sched::{EngineHandle, GenerateRequest, SamplingParams};
use metrale_core::speculative::ngram::NgramSizes;
use metrale_core::speculative::{DraftMethod, SpeculativeConfig};
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_tests::cpu::{Setup, options};
use metrale_tests::engine::{Answer, by_mtp, greedy, run_together, serve_drafting};
use metrale_tests::trained::{Trained, list};

const MAX_LEN: usize = 256;

fn trained() -> Trained {
    Trained::open("tiny-qwen3-next").unwrap()
}

fn runner(change: impl FnOnce(&mut RunnerOptions)) -> ModelRunner {
    let setup = Setup::cpu(KvDtype::F32, Activations::F32);
    let mut options = RunnerOptions { max_num_seqs: 8, ..options(MAX_LEN, setup) };
    change(&mut options);
    trained().load_with(metrale_qwen3_ssm::plugin_module(), &options).unwrap().runner
}

/// All recorded prompts, greedily and with chance.
fn requests() -> Vec<GenerateRequest> {
    let golden = trained().golden;
    let prompts = golden["prompts"].as_array().unwrap().iter().map(|p| list::<u32>(&p["input_ids"]).unwrap());
    let held_out: Vec<Vec<u32>> = list(&golden["mtp"]["prompts"]).unwrap();
    let prompts: Vec<_> = prompts.chain(held_out.into_iter().take(10)).collect();
    let sampled = |i: usize, prompt: &Vec<u32>| {
        let sampling = SamplingParams {
            temperature: 0.3 + 0.2 * (i % 4) as f32,
            top_p: [1.0, 0.9][i % 2],
            repetition_penalty: [1.0, 1.1][i / 2 % 2],
            seed: Some(i as u64),
            ..greedy(prompt, 48).sampling
        };
        GenerateRequest::new(prompt.clone(), sampling)
    };
    let chance: Vec<_> = prompts.iter().enumerate().map(|(i, p)| sampled(i, p)).collect();
    prompts.iter().map(|p| greedy(p, 48)).chain(chance).collect()
}

/// Tokens and the bits of their log-probabilities.
fn bits(answers: &[Answer]) -> Vec<(Vec<u32>, Vec<u32>)> {
    let logprobs = |a: &Answer| a.logprobs.iter().map(|l| l.chosen.logprob.to_bits()).collect();
    answers.iter().map(|a| (a.tokens.clone(), logprobs(a))).collect()
}

fn settled(engine: &EngineHandle) {
    while engine.snapshot().running > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn drafts_do_not_change_a_bit_of_the_answers() {
    let requests = requests();
    let plain = serve_drafting(runner(|o| o.mtp = MtpHead::Skip), true, None);
    let expected = bits(&run_together(&plain, &requests).unwrap());
    let by_ngram = DraftMethod::Ngram(NgramSizes { min: 1, max: 4 });
    let by_ngram = SpeculativeConfig { method: by_ngram, num_speculative_tokens: 3 };
    for speculative in [by_mtp(1), by_mtp(2), by_mtp(3), Some(by_ngram)] {
        let engine = serve_drafting(runner(|_| ()), true, speculative);
        // Together, then again from cached prefixes and state snapshots, then some alone.
        for _ in 0..2 {
            assert_eq!(bits(&run_together(&engine, &requests).unwrap()), expected, "{speculative:?}");
        }
        for (request, expected) in requests.iter().zip(&expected).step_by(5) {
            let alone = run_together(&engine, std::slice::from_ref(request)).unwrap();
            assert_eq!(bits(&alone)[0], *expected, "{speculative:?}");
        }
        println!("{speculative:?}: {}", engine.snapshot().drafts);
        assert!(engine.snapshot().drafts.num_accepted_tokens() > 500);
    }
}

#[test]
fn preemption_and_aborts_between_drafts_do_not_change_a_bit() {
    let requests = requests();
    let plain = serve_drafting(runner(|_| ()), true, None);
    let expected = bits(&run_together(&plain, &requests).unwrap());
    // Pages for about three of the eight sequences that could run.
    let small = |o: &mut RunnerOptions| {
        o.max_model_len = Some(128);
        o.kv_cache_bytes = Some(18 * 16 * 3 * 2 * 2 * 64 * 4);
    };
    for enable_prefix_caching in [false, true] {
        let engine = serve_drafting(runner(small), enable_prefix_caching, by_mtp(3));
        let aborted = std::thread::spawn({
            let (engine, requests) = (engine.clone(), requests.clone());
            move || {
                for (i, request) in requests.iter().cycle().take(60).enumerate() {
                    let mut generation = engine.submit(request.clone()).unwrap();
                    (0..i % 7).for_each(|_| drop(generation.blocking_next()));
                }
            }
        });
        assert_eq!(bits(&run_together(&engine, &requests).unwrap()), expected);
        aborted.join().unwrap();
        settled(&engine);
        let snapshot = engine.snapshot();
        assert!(snapshot.num_preemptions > 0, "{snapshot:?}");
        assert!(snapshot.drafts.num_accepted_tokens() > 500, "{snapshot:?}");
        assert_eq!(snapshot.num_free_blocks, snapshot.num_blocks);
    }
}

/// Tells what the rows of every step are.
struct Recorder {
    runner: ModelRunner,
    /// Slot, first position, known tokens and number of drafts of every sequence of a step.
    log: Sender<(StateSlot, usize, Vec<u32>, usize)>,
}

impl StepRunner for Recorder {
    fn step(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), EngineError> {
        let mut row = 0;
        for seq in &batch.seqs {
            let known = batch.token_ids[row..row + seq.num_tokens - seq.num_drafts].to_vec();
            row += seq.num_tokens;
            let _ = self.log.send((seq.state_slot, seq.num_computed, known, seq.num_drafts));
        }
        self.runner.step(batch, logits)
    }

    fn limits(&self) -> RunnerLimits {
        self.runner.limits()
    }

    fn state_snapshots(&mut self) -> Option<&mut dyn StateSnapshots> {
        self.runner.state_snapshots()
    }

    fn drafter(&mut self) -> Option<&mut dyn Drafter> {
        self.runner.drafter()
    }
}

/// How many drafts each step of each prompt accepted, as golden.json counts them.
fn accept_lengths(prompts: &[Vec<u32>], num_drafts: usize, num_tokens: usize) -> Vec<Vec<usize>> {
    let (log, steps) = channel();
    let engine = serve_drafting(Recorder { runner: runner(|_| ()), log }, false, by_mtp(num_drafts));
    // Some more tokens than counted, so that every counted step has all its drafts and a step after it.
    let ignoring = |p: &Vec<u32>| {
        let sampling = SamplingParams { ignore_eos: true, ..greedy(p, num_tokens + 16).sampling };
        GenerateRequest::new(p.clone(), sampling)
    };
    let requests: Vec<_> = prompts.iter().map(ignoring).collect();
    run_together(&engine, &requests).unwrap();
    drop(engine);
    let mut running = HashMap::new();
    let mut positions: Vec<Vec<usize>> = vec![Vec::new(); prompts.len()];
    for (slot, first, known, _) in steps {
        if first == 0 {
            running.insert(slot, prompts.iter().position(|p| *p == known).unwrap());
        } else {
            positions[running[&slot]].push(first);
        }
    }
    let lengths = |(prompt, positions): (&Vec<u32>, &Vec<usize>)| {
        let counted = |step: &&[usize]| step[0] - prompt.len() < num_tokens;
        positions.windows(2).take_while(counted).map(|step| step[1] - step[0] - 1).collect()
    };
    prompts.iter().zip(&positions).map(lengths).collect()
}

#[test]
fn drafts_are_accepted_as_often_as_recorded() {
    let golden = trained().golden;
    let recorded = &golden["mtp"];
    let prompts: Vec<Vec<u32>> = list(&recorded["prompts"]).unwrap();
    let num_tokens = recorded["tokens_per_prompt"].as_u64().unwrap() as usize;
    for num_drafts in 1..=3 {
        let expected = &recorded["draft_lengths"][num_drafts.to_string()];
        let expected: Vec<Vec<usize>> = list(&expected["accept_lengths"]).unwrap();
        let found = accept_lengths(&prompts, num_drafts, num_tokens);
        let mean = |all: &[Vec<usize>]| {
            let (sum, count): (usize, usize) = (all.iter().flatten().sum(), all.iter().map(Vec::len).sum());
            sum as f64 / count as f64
        };
        let differing = found.iter().zip(&expected).filter(|(f, e)| f != e).count();
        let (found_mean, expected_mean) = (mean(&found), mean(&expected));
        println!(
            "{num_drafts} drafts: {found_mean:.4} accepted per step, recorded {expected_mean:.4}; {differing} of {} prompts differ",
            prompts.len()
        );
        assert!((found_mean / expected_mean - 1.0).abs() < 0.02, "{found_mean}, recorded {expected_mean}");
        // Close ties may go the other way in other f32 implementations.
        assert!(differing <= 2, "{found:?}, recorded {expected:?}");
    }
}
