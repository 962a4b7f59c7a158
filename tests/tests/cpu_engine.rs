//! A hybrid model behind the scheduler: its recurrent state follows prompts through prefix reuse, aborts and company.

#![allow(clippy::unwrap_used)]

use metrale_core::sched::{EngineHandle, GenerateRequest};
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_tests::cpu::CpuModel;
use metrale_tests::engine::{Answer, greedy, run_together, serve};
use metrale_tests::golden::{Golden, Goldens};

/// Tokens per page of the test models.
const PAGE: usize = 16;
const NUM_TOKENS: usize = 6;

fn with_golden(check: impl FnOnce(&Golden, &[u32])) {
    let goldens = Goldens::of(metrale_qwen3_ssm::plugin_module()).unwrap();
    let golden = &goldens.models[0];
    let tokens = golden.token_ids().unwrap();
    let tokens: Vec<u32> = tokens.iter().map(|&t| u32::try_from(t).unwrap()).collect();
    check(golden, &tokens);
}

fn engine(golden: &Golden, enable_prefix_caching: bool, num_state_snapshots: usize) -> EngineHandle {
    let plugin = metrale_qwen3_ssm::plugin_module();
    let model = CpuModel::open_with(plugin, golden, KvDtype::F32, Some(num_state_snapshots)).unwrap();
    serve(model.runner, enable_prefix_caching, &[])
}

/// What each request gets on an engine of its own, which shares nothing.
fn alone(golden: &Golden, requests: &[GenerateRequest]) -> Vec<Answer> {
    let one = |r: &GenerateRequest| {
        run_together(&engine(golden, false, 0), std::slice::from_ref(r)).unwrap().remove(0)
    };
    requests.iter().map(one).collect()
}

fn assert_same(found: &Answer, expected: &Answer) {
    assert_eq!(found.tokens, expected.tokens);
    assert_eq!(found.logprobs, expected.logprobs, "log-probabilities differ in some bit");
}

#[test]
fn prefixes_are_reused_at_snapshots_and_nowhere_else() {
    with_golden(|golden, tokens| {
        let first = tokens[..40].to_vec();
        // Leaves the first prompt after its last full page, and within it.
        let (mut later, mut sooner) = (first.clone(), first.clone());
        later[35] ^= 1;
        sooner[20] ^= 1;
        let requests = [&first, &first, &later, &sooner, &first].map(|p| greedy(p, NUM_TOKENS));
        let expected = alone(golden, &requests);
        for (num_snapshots, reused) in [(2, [0, 2 * PAGE, 2 * PAGE, 0, 2 * PAGE]), (0, [0; 5])] {
            let engine = engine(golden, true, num_snapshots);
            for (i, request) in requests.iter().enumerate() {
                let found = run_together(&engine, std::slice::from_ref(request)).unwrap().remove(0);
                assert_eq!(found.num_cached_tokens, reused[i], "request {i}, {num_snapshots} snapshots");
                assert_same(&found, &expected[i]);
            }
        }
    });
}

#[test]
fn a_snapshot_that_was_replaced_is_not_used() {
    with_golden(|golden, tokens| {
        let prompts = [&tokens[..40], &tokens[5..45], &tokens[10..50], &tokens[..40]];
        let requests = prompts.map(|p| greedy(p, NUM_TOKENS));
        let expected = alone(golden, &requests);
        let engine = engine(golden, true, 1);
        for (request, expected) in requests.iter().zip(&expected) {
            let found = run_together(&engine, std::slice::from_ref(request)).unwrap().remove(0);
            assert_eq!(found.num_cached_tokens, 0);
            assert_same(&found, expected);
        }
    });
}

#[test]
fn company_and_aborts_change_no_bit() {
    with_golden(|golden, tokens| {
        let requests: Vec<_> = (0..6).map(|i| greedy(&tokens[i..20 + 5 * i], 4 + i)).collect();
        let expected = alone(golden, &requests);
        for enable_prefix_caching in [false, true] {
            let engine = engine(golden, enable_prefix_caching, 2);
            for round in 0..4 {
                // More requests than there are slots, some of which are given up in the middle of their work.
                let given_up: Vec<_> =
                    (0..3).map(|i| engine.submit(greedy(&tokens[round..30 + i], 20)).unwrap()).collect();
                let mut given_up = given_up.into_iter();
                let mut running = given_up.next().unwrap();
                let _ = running.blocking_next();
                drop((running, given_up));
                let found = run_together(&engine, &requests).unwrap();
                for (found, expected) in found.iter().zip(&expected) {
                    assert_same(found, expected);
                }
            }
        }
    });
}
