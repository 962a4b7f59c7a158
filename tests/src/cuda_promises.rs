//! What the CUDA device must compute for every golden model. Sums there depend on the number of rows, so that chunks and
//! batches are compared within the tolerance of their number format; what was recorded must keep every bit.

use anyhow::{Result, ensure};
use metrale_core::exec::{StateSlot, StepRunner};
use metrale_core::lower::plan::ElementType;
use metrale_core::ssm::SnapshotSlot;
use metrale_plugin_api::abi::PluginModule_Ref;
use metrale_reference::Tensor;

use crate::cpu_promises::ensure_same_bits;
use crate::differences::TOLERANCE;
use crate::golden::{Golden, Goldens};
use crate::model::{Chunk, DeviceModel, Setup};

/// Calls `check` with every golden model of a plugin that the GPU can run, ready to run.
///
/// # Errors
/// A model cannot be opened, or the check fails.
#[allow(clippy::print_stderr)]
pub fn for_all(
    plugin: PluginModule_Ref,
    activations: ElementType,
    mut check: impl FnMut(&Golden, &mut DeviceModel) -> Result<()>,
) -> Result<()> {
    for golden in &Goldens::of(plugin)?.models {
        // The device runs no vision tower yet.
        if golden.images()?.is_some() {
            continue;
        }
        let mut model = match DeviceModel::open_on(plugin, golden, Setup::cuda(activations), None) {
            // Said at load, with the way out: nothing is computed wrongly.
            Err(error) if format!("{error:#}").contains("experts with biases have no cuda kernel") => {
                eprintln!("!!! SKIPPED: {}: {error:#} !!!", golden.name);
                continue;
            }
            opened => opened?,
        };
        check(golden, &mut model).map_err(|e| e.context(golden.name.clone()))?;
    }
    Ok(())
}

/// Largest difference of logits that a number format explains: between f32 implementations, or twice as much as
/// transformers in bf16 was off.
fn tolerance(golden: &Golden, activations: ElementType) -> f32 {
    match activations {
        ElementType::F32 => TOLERANCE,
        ElementType::BF16 => 2.0 * golden.bf16_bound().unwrap_or(0.0),
    }
}

fn ensure_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) -> Result<()> {
    ensure!(found.len() == expected.len(), "{what}: {} values, expected {}", found.len(), expected.len());
    // `f32::max` would drop a NaN.
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m });
    ensure!(largest <= tolerance, "{what}: {largest} exceeds {tolerance}");
    Ok(())
}

fn recorded(golden: &Golden) -> Result<(Vec<i64>, Tensor)> {
    Ok((golden.token_ids()?, golden.required_array("logits_f32_nocache.npy")?))
}

/// Logits of the whole pass.
///
/// # Errors
/// They differ from what was recorded.
pub fn whole_pass_is_close(golden: &Golden, model: &mut DeviceModel, of: ElementType) -> Result<()> {
    let (tokens, expected) = recorded(golden)?;
    let logits = model.step(&[Chunk::new(0, 0, &tokens)])?;
    ensure_close("whole pass", logits.data(), expected.data(), tolerance(golden, of))
}

/// Prefill in chunks, and decoding one token at a time.
///
/// # Errors
/// Logits differ from what was recorded.
pub fn chunks_are_close(golden: &Golden, model: &mut DeviceModel, of: ElementType) -> Result<()> {
    let (tokens, expected) = recorded(golden)?;
    for size in [1, 3, 16, 17] {
        let sizes: Vec<usize> = tokens.chunks(size).map(<[i64]>::len).collect();
        let found = model.in_chunks(&tokens, &sizes)?;
        ensure_close(&format!("chunks of {size}"), found.data(), expected.data(), tolerance(golden, of))?;
    }
    Ok(())
}

/// Three sequences that decode together at different places, in steps that are filled up to four, and a prefill beside
/// them.
///
/// # Errors
/// Logits differ from what was recorded.
pub fn batches_are_close(golden: &Golden, model: &mut DeviceModel, of: ElementType) -> Result<()> {
    let (tokens, expected) = recorded(golden)?;
    let tolerance = tolerance(golden, of);
    let starts = [1, tokens.len() / 3, tokens.len() / 2];
    for (sequence, &start) in starts.iter().enumerate() {
        model.step(&[Chunk::new(sequence, 0, &tokens[..start])])?;
    }
    for step in 0..tokens.len() - starts[2] {
        let at = starts.map(|start| start + step);
        let chunk = |(sequence, &at): (usize, &usize)| Chunk::new(sequence, at, &tokens[at..=at]);
        let chunks: Vec<_> = at.iter().enumerate().map(chunk).collect();
        let found = model.step(&chunks)?;
        for (row, &at) in at.iter().enumerate() {
            ensure_close(&format!("row {row} at {at}"), found.row(row), expected.row(at), tolerance)?;
        }
    }
    model.step(&[Chunk::new(0, 0, &tokens[..1])])?;
    let together = model.step(&[Chunk::new(0, 1, &tokens[1..2]), Chunk::new(3, 0, &tokens)])?;
    ensure_close("beside a prefill", together.row(0), expected.row(1), tolerance)?;
    let prefill = together.rows(1..1 + tokens.len());
    ensure_close("a prefill", prefill.data(), expected.data(), tolerance)
}

/// A sequence that continues from a snapshot of another's state, in the other's pages. Models without recurrent state
/// take none.
///
/// # Errors
/// Logits differ from what was recorded.
pub fn snapshots_continue(golden: &Golden, model: &mut DeviceModel, of: ElementType) -> Result<()> {
    let (tokens, expected) = recorded(golden)?;
    let half = tokens.len() / 2;
    model.step(&[Chunk::new(0, 0, &tokens[..half])])?;
    let Some(snapshots) = model.runner.state_snapshots() else { return Ok(()) };
    snapshots.save(StateSlot(0), SnapshotSlot(1))?;
    model.step(&[Chunk::new(0, half, &tokens[half..])])?;
    model.step(&[Chunk::new(3, 0, &tokens[1..])])?;
    if let Some(snapshots) = model.runner.state_snapshots() {
        snapshots.restore(SnapshotSlot(1), StateSlot(3))?;
    }
    let rest = model.step(&[Chunk { pages_of: 0, ..Chunk::new(3, half, &tokens[half..]) }])?;
    let expected = expected.rows(half..tokens.len());
    ensure_close("a snapshot", rest.data(), expected.data(), tolerance(golden, of))
}

/// Steps of sequences that join and leave, recorded and launch by launch: the same bits, and nothing is recorded again when
/// the same numbers of sequences return.
///
/// # Errors
/// A bit differs, or steps were recorded anew.
pub fn recorded_steps_keep_every_bit(plugin: PluginModule_Ref, of: ElementType) -> Result<()> {
    // Sequences in each step; one of them is new whenever there are more than before.
    const COMPANY: [&[usize]; 10] =
        [&[0], &[0], &[0, 1], &[0, 1], &[0, 1, 2], &[1, 2, 3], &[1, 2, 3], &[2, 3], &[3], &[0, 1, 2, 3]];
    for golden in &Goldens::of(plugin)?.models {
        if golden.is_seq2seq() || golden.images()?.is_some() {
            continue;
        }
        let tokens = golden.token_ids()?;
        let setup = Setup::cuda(of);
        let mut eager = DeviceModel::open_on(plugin, golden, setup.eager(), None)?;
        let mut model = DeviceModel::open_on(plugin, golden, setup, None)?;
        let mut counts = Vec::new();
        for round in 0..3 {
            let mut lengths = [0; 4];
            for (step, company) in COMPANY.iter().enumerate() {
                let chunk = |&sequence: &usize| {
                    let at = lengths[sequence];
                    let first = (3 * round + 5 * sequence + at) % tokens.len();
                    Chunk::new(sequence, at, &tokens[first..=first])
                };
                let chunks: Vec<_> = company.iter().map(chunk).collect();
                let (found, expected) = (model.step(&chunks)?, eager.step(&chunks)?);
                ensure_same_bits(golden, &format!("step {step}, recorded,"), found.data(), expected.data())?;
                company.iter().for_each(|&sequence| lengths[sequence] += 1);
            }
            counts.push(model.runner.num_recorded());
        }
        ensure!(eager.runner.num_recorded() == 0, "{}: an eager model recorded steps", golden.name);
        ensure!(counts[0] > 0 && counts.iter().all(|c| *c == counts[0]), "{}: {counts:?}", golden.name);
    }
    Ok(())
}

/// The MTP head over all slots at once, and in two parts.
///
/// # Errors
/// It differs from what was recorded, or the head was not loaded.
pub fn mtp_is_close(golden: &Golden, model: &mut DeviceModel) -> Result<()> {
    let Some(logits) = golden.array("mtp_logits_f32.npy")? else { return Ok(()) };
    let tokens = golden.token_ids()?;
    let slots = tokens.len() - 1;
    model.step(&[Chunk::new(0, 0, &tokens)])?;
    let hidden = model.value("final_hidden", tokens.len())?.rows(0..slots);
    let next_ids = &tokens[1..];
    let (recycled, found) = model.mtp(0, Chunk::new(0, 0, next_ids), &hidden)?;
    ensure_close("mtp logits", found.data(), logits.data(), TOLERANCE)?;
    let expected = golden.required_array("mtp_hidden_f32.npy")?;
    ensure_close("mtp hidden", recycled.data(), expected.data(), TOLERANCE)?;
    let half = slots / 2;
    model.mtp(0, Chunk::new(2, 0, &next_ids[..half]), &hidden.rows(0..half))?;
    let (_, rest) = model.mtp(0, Chunk::new(2, half, &next_ids[half..]), &hidden.rows(half..slots))?;
    ensure_close("continuing", rest.data(), logits.rows(half..slots).data(), TOLERANCE)
}
