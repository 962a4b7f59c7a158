//! The llama plugin on the CPU device, against golden models.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use anyhow::Result;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_reference::Tensor;
use metrale_tests::cpu::{Chunk, CpuModel};
use metrale_tests::differences::Differences;
use metrale_tests::golden::{Golden, Goldens};

fn for_all(kv_dtype: KvDtype, mut check: impl FnMut(&Golden, &mut CpuModel) -> Result<()>) {
    let plugin = metrale_llama::plugin_module();
    for golden in &Goldens::of(plugin).unwrap().models {
        let mut model = CpuModel::open(plugin, golden, kv_dtype).unwrap();
        check(golden, &mut model).unwrap();
    }
}

fn whole(model: &mut CpuModel, tokens: &[i64]) -> Result<Tensor> {
    model.step(&[Chunk { sequence: 0, num_computed: 0, token_ids: tokens }])
}

#[test]
fn logits_and_hidden_states_match_transformers() {
    for_all(KvDtype::F32, |golden, model| {
        let tokens = golden.token_ids()?;
        let mut differences = Differences::default();
        let logits = whole(model, &tokens)?;
        differences.compare("logits", &logits, &golden.required_array("logits_f32_nocache.npy")?)?;
        let hidden = model.value("final_hidden", tokens.len())?;
        differences.compare("hidden", &hidden, &golden.required_array("hidden_f32.npy")?)?;
        let layers = golden.required_array("layer_hidden_f32.npy")?;
        for layer in 0..layers.shape()[0] - 1 {
            let expected = Tensor::new(&layers.shape()[1..], layers.row(layer).to_vec())?;
            differences.compare(
                "layers",
                &model.value(&format!("hidden.{layer}"), tokens.len())?,
                &expected,
            )?;
        }
        println!("{:<28} {differences}", golden.name);
        assert!(differences.within_tolerance(), "{}: {differences}", golden.name);
        Ok(())
    });
}

#[test]
fn a_bf16_cache_stays_within_twice_the_recorded_bf16_bound() {
    for_all(KvDtype::BF16, |golden, model| {
        let tokens = golden.token_ids()?;
        let logits = whole(model, &tokens)?;
        let expected = golden.required_array("logits_f32_nocache.npy")?;
        let largest =
            logits.data().iter().zip(expected.data()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let bound = 2.0 * golden.bf16_bound().unwrap_or(0.0);
        println!("{:<28} {largest:.1e} of {bound:.1e}", golden.name);
        assert!(largest <= bound, "{}: {largest} exceeds {bound}", golden.name);
        Ok(())
    });
}

#[test]
fn any_chunking_gives_the_same_bits() {
    for_all(KvDtype::F32, |golden, model| {
        let tokens = golden.token_ids()?;
        let expected = whole(model, &tokens)?;
        for size in [1, 3, 16, 17] {
            let sizes: Vec<usize> = tokens.chunks(size).map(<[i64]>::len).collect();
            let found = model.in_chunks(&tokens, &sizes)?;
            assert_eq!(found.data(), expected.data(), "{}: chunks of {size}", golden.name);
        }
        Ok(())
    });
}

#[test]
fn rows_of_other_sequences_do_not_change_a_bit() {
    for_all(KvDtype::F32, |golden, model| {
        let first = golden.token_ids()?;
        let second: Vec<i64> = first.iter().rev().copied().collect();
        let half = second.len() / 2;
        let first_alone = whole(model, &first)?;
        let second_alone = whole(model, &second)?;

        model.step(&[Chunk { sequence: 2, num_computed: 0, token_ids: &second[..half] }])?;
        let together = model.step(&[
            Chunk { sequence: 2, num_computed: half, token_ids: &second[half..=half] },
            Chunk { sequence: 3, num_computed: 0, token_ids: &first },
        ])?;
        assert_eq!(together.row(0), second_alone.row(half), "{}: decode row", golden.name);
        assert_eq!(together.rows(1..1 + first.len()).data(), first_alone.data(), "{}: prefill", golden.name);
        Ok(())
    });
}

#[test]
fn a_step_enters_no_plugin() {
    for_all(KvDtype::F32, |golden, model| {
        let tokens = golden.token_ids()?;
        // Other tests of this process open models meanwhile; a step of ours that entered a plugin would count each time.
        let entered = (0..20).any(|_| {
            let before = metrale_graph::host::num_plugin_calls();
            whole(model, &tokens).unwrap();
            metrale_graph::host::num_plugin_calls() == before
        });
        assert!(entered, "{}: every one of 20 steps entered a plugin", golden.name);
        Ok(())
    });
}
