//! What the CPU device must compute for every golden model of a decoder-only plugin.

use anyhow::{Result, ensure};
use metrale_core::exec::StateSnapshots;
use metrale_core::exec::{StateSlot, StepRunner};
use metrale_core::speculative::config::MAX_DRAFTS;
use metrale_core::ssm::SnapshotSlot;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_plugin_api::abi::PluginModule_Ref;
use metrale_reference::Tensor;

use crate::cpu::{Chunk, CpuModel};
use crate::differences::Differences;
use crate::golden::{Golden, Goldens};

/// Calls `check` with every golden model of a plugin, ready to run.
///
/// # Errors
/// A model cannot be opened, or the check fails.
pub fn for_all(
    plugin: PluginModule_Ref,
    kv_dtype: KvDtype,
    mut check: impl FnMut(&Golden, &mut CpuModel) -> Result<()>,
) -> Result<()> {
    for golden in &Goldens::of(plugin)?.models {
        check(golden, &mut CpuModel::open(plugin, golden, kv_dtype)?)?;
    }
    Ok(())
}

fn whole(model: &mut CpuModel, tokens: &[i64]) -> Result<Tensor> {
    model.step(&[Chunk::new(0, 0, tokens)])
}

pub(crate) fn ensure_same_bits(golden: &Golden, what: &str, found: &[f32], expected: &[f32]) -> Result<()> {
    let same =
        found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
    ensure!(same, "{}: {what} changes bits", golden.name);
    Ok(())
}

/// Logits, the final hidden states and those after every layer.
///
/// # Errors
/// They differ from what was recorded.
pub fn whole_pass_matches(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let tokens = golden.token_ids()?;
    let mut differences = Differences::default();
    let logits = whole(model, &tokens)?;
    differences.compare("logits", &logits, &golden.required_array("logits_f32_nocache.npy")?)?;
    let hidden = model.value("final_hidden", tokens.len())?;
    differences.compare("hidden", &hidden, &golden.required_array("hidden_f32.npy")?)?;
    let layers = golden.required_array("layer_hidden_f32.npy")?;
    // What the last layer gives is recorded after the final norm only.
    for layer in 0..model.num_layers {
        let expected = Tensor::new(&layers.shape()[1..], layers.row(layer).to_vec())?;
        let found = model.value(&format!("hidden.{layer}"), tokens.len())?;
        differences.compare("layers", &found, &expected)?;
    }
    ensure!(differences.within_tolerance(), "{}: {differences}", golden.name);
    Ok(())
}

/// Logits with a cache in bf16: at most twice as far off as transformers in bf16.
///
/// # Errors
/// They differ by more.
pub fn bf16_cache_stays_in_bounds(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let tokens = golden.token_ids()?;
    let logits = whole(model, &tokens)?;
    let expected = golden.required_array("logits_f32_nocache.npy")?;
    let pairs = logits.data().iter().zip(expected.data());
    // `f32::max` would drop a NaN.
    let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m });
    let bound = 2.0 * golden.bf16_bound().unwrap_or(0.0);
    ensure!(largest <= bound, "{}: {largest} exceeds {bound}", golden.name);
    Ok(())
}

/// Prefill in chunks and decoding give the bits of the whole pass.
///
/// # Errors
/// A chunking changes a bit.
pub fn any_chunking_gives_the_same_bits(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let tokens = golden.token_ids()?;
    let expected = whole(model, &tokens)?;
    for size in [1, 3, 16, 17] {
        let sizes: Vec<usize> = tokens.chunks(size).map(<[i64]>::len).collect();
        let found = model.in_chunks(&tokens, &sizes)?;
        ensure_same_bits(golden, &format!("chunks of {size}"), found.data(), expected.data())?;
    }
    Ok(())
}

/// A prefill beside a row that is being decoded: each gives the bits that it gives alone.
///
/// # Errors
/// The company changes a bit.
pub fn rows_of_others_do_not_change_a_bit(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let first = golden.token_ids()?;
    let second: Vec<i64> = first.iter().rev().copied().collect();
    let half = second.len() / 2;
    let first_alone = whole(model, &first)?;
    let second_alone = whole(model, &second)?;

    model.step(&[Chunk::new(2, 0, &second[..half])])?;
    let together = model.step(&[Chunk::new(2, half, &second[half..=half]), Chunk::new(3, 0, &first)])?;
    ensure_same_bits(golden, "a decode row", together.row(0), second_alone.row(half))?;
    let prefill = together.rows(1..1 + first.len());
    ensure_same_bits(golden, "a prefill", prefill.data(), first_alone.data())
}

/// A sequence that is given up half way leaves nothing behind: the next one in its pages and its state slot starts clean.
///
/// # Errors
/// The leftovers change a bit.
pub fn an_abandoned_sequence_leaves_nothing(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let tokens = golden.token_ids()?;
    let other: Vec<i64> = tokens.iter().rev().copied().collect();
    let expected = whole(model, &tokens)?;
    for given_up_at in [1, tokens.len() / 2, tokens.len() - 1] {
        model.step(&[Chunk::new(0, 0, &other[..given_up_at])])?;
        let found = whole(model, &tokens)?;
        ensure_same_bits(golden, "an abandoned sequence", found.data(), expected.data())?;
    }
    Ok(())
}

/// A step enters no plugin.
///
/// # Errors
/// Every one of 20 steps did.
pub fn a_step_enters_no_plugin(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let tokens = golden.token_ids()?;
    // Other tests of this process open models meanwhile; a step of ours that entered a plugin would count each time.
    for _ in 0..20 {
        let before = metrale_graph::host::num_plugin_calls();
        whole(model, &tokens)?;
        if metrale_graph::host::num_plugin_calls() == before {
            return Ok(());
        }
    }
    anyhow::bail!("{}: every one of 20 steps entered a plugin", golden.name)
}

/// A sequence that continues from a snapshot of another's state, in the other's pages, gives the bits of the whole pass.
///
/// # Errors
/// It does not, or the runner takes no snapshots.
pub fn a_snapshot_continues_with_the_same_bits(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let tokens = golden.token_ids()?;
    let expected = whole(model, &tokens)?;
    let half = tokens.len() / 2;
    model.step(&[Chunk::new(0, 0, &tokens[..half])])?;
    snapshots(model)?.save(StateSlot(0), SnapshotSlot(1))?;
    // The state moves on, and another sequence uses the slot that the snapshot goes to.
    model.step(&[Chunk::new(0, half, &tokens[half..])])?;
    model.step(&[Chunk::new(3, 0, &tokens[1..])])?;
    snapshots(model)?.restore(SnapshotSlot(1), StateSlot(3))?;
    let rest = model.step(&[Chunk { pages_of: 0, ..Chunk::new(3, half, &tokens[half..]) }])?;
    ensure_same_bits(golden, "a snapshot", rest.data(), expected.rows(half..tokens.len()).data())
}

/// Rows that are taken back, one to three at a time and any number of them wrong, leave no trace: the rows that stay have
/// the bits of the whole pass, and so has a neighbour that never drafts.
///
/// # Errors
/// A bit differs.
pub fn rejected_drafts_leave_no_trace(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let tokens = golden.token_ids()?;
    let neighbour: Vec<i64> = tokens.iter().rev().copied().collect();
    let (expected, neighbour_expected) = (whole(model, &tokens)?, whole(model, &neighbour)?);
    let vocab_size = expected.width() as i64;
    for num_drafts in 1..=MAX_DRAFTS {
        let (mut first, mut num_accepted, mut step) = (0, 0, 0);
        while first < tokens.len() {
            let known = if first == 0 { 5 } else { 1 };
            let num_drafts = num_drafts.min(tokens.len() - first - known);
            let num_right = (step * 7 + 2) % (num_drafts + 1);
            let mut rows = tokens[first..first + known + num_drafts].to_vec();
            rows[known + num_right..].iter_mut().for_each(|token| *token = (*token + 1) % vocab_size);
            let drafting = Chunk::new(1, first, &rows).with_drafts(num_drafts, num_accepted);
            let row = step.min(neighbour.len() - 1);
            let beside = Chunk::new(2, row, &neighbour[row..=row]);
            let found = model.step(&[drafting, beside])?;
            let num_kept = known + num_right;
            for row in 0..num_kept {
                ensure_same_bits(golden, "a verified row", found.row(row), expected.row(first + row))?;
            }
            if step < neighbour.len() {
                let (row, expected) = (found.row(rows.len()), neighbour_expected.row(step));
                ensure_same_bits(golden, "the neighbour of drafts", row, expected)?;
            }
            (first, num_accepted, step) = (first + num_kept, num_right, step + 1);
        }
    }
    Ok(())
}

fn snapshots(model: &mut CpuModel) -> Result<&mut dyn StateSnapshots> {
    let snapshots = model.runner.state_snapshots();
    snapshots.ok_or_else(|| anyhow::anyhow!("the runner takes no snapshots"))
}

/// What the tower makes of the images of the prompt; models without images pass.
///
/// # Errors
/// It differs from what was recorded.
pub fn image_rows_match(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let Some(expected) = golden.array("image_embeds.npy")? else { return Ok(()) };
    whole(model, &golden.token_ids()?)?;
    let found = model.runner.image_rows().ok_or_else(|| anyhow::anyhow!("no vision tower"))?;
    let found = Tensor::new(expected.shape(), found.to_vec())?;
    let mut differences = Differences::default();
    differences.compare("image rows", &found, &expected)?;
    ensure!(differences.within_tolerance(), "{}: {differences}", golden.name);
    Ok(())
}

/// The MTP head over all slots at once and in two parts: as recorded, and with the same bits.
///
/// # Errors
/// It is not, or the head was not loaded.
pub fn mtp_matches(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let Some(logits) = golden.array("mtp_logits_f32.npy")? else { return Ok(()) };
    let tokens = golden.token_ids()?;
    let slots = tokens.len() - 1;
    whole(model, &tokens)?;
    let hidden = model.value("final_hidden", tokens.len())?.rows(0..slots);
    let next_ids = &tokens[1..];
    let (recycled, found) = model.mtp(0, Chunk::new(0, 0, next_ids), &hidden)?;
    let mut differences = Differences::default();
    differences.compare("mtp logits", &found, &logits)?;
    differences.compare("mtp hidden", &recycled, &golden.required_array("mtp_hidden_f32.npy")?)?;
    ensure!(differences.within_tolerance(), "{}: {differences}", golden.name);

    let half = slots / 2;
    model.mtp(0, Chunk::new(2, 0, &next_ids[..half]), &hidden.rows(0..half))?;
    let (_, rest) = model.mtp(0, Chunk::new(2, half, &next_ids[half..]), &hidden.rows(half..slots))?;
    ensure_same_bits(golden, "continuing", rest.data(), found.rows(half..slots).data())
}
