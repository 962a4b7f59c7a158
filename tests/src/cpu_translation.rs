//! What the CPU device must compute for every golden model of an encoder-decoder plugin.

use anyhow::{Context, Result, ensure};
use metrale_core::sched::{BeamParams, EarlyStopping, GenerateRequest, SamplingParams};
use metrale_reference::Tensor;

use crate::cpu::{Chunk, CpuModel};
use crate::cpu_promises::ensure_same_bits;
use crate::differences::Differences;
use crate::engine::{run_together, serve};
use crate::golden::Golden;

/// A recorded translation: source tokens, target tokens, encoder output, logits.
struct Recorded {
    source: Vec<i64>,
    target: Vec<i64>,
    encoded: Tensor,
    logits: Tensor,
}

fn recorded(golden: &Golden) -> Result<Vec<Recorded>> {
    let encoded = golden.required_array("encoder_hidden_f32.npy")?;
    let logits = golden.required_array("logits_f32.npy")?;
    let of = |(row, (source, mut target)): (usize, (Vec<i64>, Vec<i64>))| {
        target.truncate(logits.shape()[1]);
        Ok(Recorded {
            encoded: Tensor::new(&encoded.shape()[1..], encoded.row(row).to_vec())?.rows(0..source.len()),
            logits: Tensor::new(&logits.shape()[1..], logits.row(row).to_vec())?,
            source,
            target,
        })
    };
    let all = golden.translations()?.into_iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
    ensure!(all.len() >= 2, "{}: {} translations", golden.name, all.len());
    Ok(all)
}

fn whole(model: &mut CpuModel, sequence: usize, r: &Recorded) -> Result<Tensor> {
    model.step(&[Chunk::new(sequence, 0, &r.target).of(&r.source)])
}

/// Encoder output and decoder logits of every row, at its real length.
///
/// # Errors
/// They differ from what was recorded.
pub fn translations_match(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let mut differences = Differences::default();
    for recorded in &recorded(golden)? {
        differences.compare("logits", &whole(model, 0, recorded)?, &recorded.logits)?;
        differences.compare("encoder", &model.encoded(recorded.source.len())?, &recorded.encoded)?;
    }
    ensure!(differences.within_tolerance(), "{}: {differences}", golden.name);
    Ok(())
}

/// Beam searches of every recorded setting, all at once: the same sequences, scores within 1e-4. Some frequent token
/// plays the part of `</s>`.
///
/// # Errors
/// They differ from what was recorded.
pub fn beam_searches_match(golden: &Golden, model: CpuModel) -> Result<()> {
    let searches = golden.fact("beam").as_object().context("golden.json has no beam")?;
    let (end, max_length) =
        (u32_fact(golden, "beam_eos_token_id")?, u32_fact(golden, "beam_max_length")? as usize);
    let (mut requests, mut expected) = (Vec::new(), Vec::new());
    for (name, found) in searches {
        let Some(beams) = settings(name)? else { continue };
        let sequences: Vec<Vec<u32>> = serde_json::from_value(found["sequences"].clone())?;
        let scores: Vec<f32> = serde_json::from_value(found["scores"].clone())?;
        let of_sources = sequences.chunks(beams.num_beams).zip(scores.chunks(beams.num_beams));
        for ((source, target), recorded) in golden.translations()?.into_iter().zip(of_sources) {
            let start: Vec<u32> = target[..2].iter().map(|&id| id as u32).collect();
            let sampling = SamplingParams {
                max_tokens: max_length - start.len(),
                stop_token_ids: vec![end],
                ignore_eos: true,
                ..SamplingParams::default()
            };
            let source = source.into_iter().map(|id| id as u32).collect();
            requests.push(GenerateRequest::new(start, sampling).with_source(source).with_beams(beams));
            expected.push((name, recorded.0.to_vec(), recorded.1.to_vec()));
        }
    }
    ensure!(requests.len() >= 16, "{}: {} beam searches", golden.name, requests.len());
    let engine = serve(model.runner, true, &[2]);
    for (answer, (name, sequences, scores)) in run_together(&engine, &requests)?.iter().zip(expected) {
        ensure!(answer.hypotheses.len() == sequences.len(), "{}: {name}: too few hypotheses", golden.name);
        for (found, (sequence, score)) in answer.hypotheses.iter().zip(sequences.iter().zip(scores)) {
            // The sequences are padded behind their end.
            let recorded = &sequence[2..];
            let end = recorded.iter().position(|&id| id == end).map_or(recorded.len(), |at| at + 1);
            ensure!(
                found.tokens == recorded[..end],
                "{}: {name}: {found:?}, recorded {recorded:?}",
                golden.name
            );
            ensure!(
                (found.score - score).abs() < 1e-4,
                "{}: {name}: {found:?}, recorded {score}",
                golden.name
            );
        }
    }
    Ok(())
}

/// `beams4_lp0.6_esnever`; `None` for greedy decoding.
fn settings(name: &str) -> Result<Option<BeamParams>> {
    let parts: Vec<&str> = name.split('_').collect();
    let [beams, penalty, stopping] = parts.as_slice() else { anyhow::bail!("a beam search named {name}") };
    let num_beams: usize = beams.trim_start_matches("beams").parse()?;
    let early_stopping = match stopping.trim_start_matches("es") {
        "True" => EarlyStopping::WhenFull,
        "False" => EarlyStopping::Heuristic,
        "never" => EarlyStopping::Never,
        other => anyhow::bail!("{name}: early stopping {other}"),
    };
    let length_penalty = penalty.trim_start_matches("lp").parse()?;
    Ok((num_beams > 1).then_some(BeamParams {
        num_beams,
        num_return: num_beams,
        length_penalty,
        early_stopping,
    }))
}

fn u32_fact(golden: &Golden, name: &str) -> Result<u32> {
    Ok(serde_json::from_value(golden.fact(name).clone())?)
}

/// A source is encoded once: later rows of the target, in chunks or one at a time, give the bits of the whole pass.
///
/// # Errors
/// A chunking changes a bit.
pub fn any_chunking_gives_the_same_bits(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    for recorded in &recorded(golden)? {
        let expected = whole(model, 0, recorded)?;
        for size in [1, 2, 16, 17] {
            let mut start = 0;
            for chunk in recorded.target.chunks(size) {
                let found = model.step(&[Chunk::new(1, start, chunk).of(&recorded.source)])?;
                let expected = expected.rows(start..start + chunk.len());
                ensure_same_bits(golden, &format!("chunks of {size}"), found.data(), expected.data())?;
                start += chunk.len();
            }
        }
    }
    Ok(())
}

/// Later rows of the target, in chunks and one at a time, beside another translation.
///
/// # Errors
/// Logits differ from what was recorded.
pub fn chunks_match(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let all = recorded(golden)?;
    let [first, second, ..] = all.as_slice() else { return Ok(()) };
    let mut differences = Differences::default();
    let len = first.target.len().min(second.target.len());
    for size in [1, 3] {
        for start in (0..len).step_by(size) {
            let rows = start..len.min(start + size);
            let chunk = |sequence: usize, r: &'_ Recorded| -> (Vec<i64>, Vec<i64>, usize) {
                (r.target[rows.clone()].to_vec(), r.source.clone(), sequence)
            };
            let parts = [chunk(1, first), chunk(2, second)];
            let chunks: Vec<_> =
                parts.iter().map(|(target, source, s)| Chunk::new(*s, start, target).of(source)).collect();
            let found = model.step(&chunks)?;
            for (part, r) in [first, second].into_iter().enumerate() {
                let found = found.rows(part * rows.len()..(part + 1) * rows.len());
                differences.compare("chunks", &found, &r.logits.rows(rows.clone()))?;
            }
        }
    }
    ensure!(differences.within_tolerance(), "{}: {differences}", golden.name);
    Ok(())
}

/// Translations that are encoded together, and one that is being decoded beside them, give the bits that each gives alone.
///
/// # Errors
/// The company changes a bit.
pub fn rows_of_others_do_not_change_a_bit(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let all = recorded(golden)?;
    let [first, second, ..] = all.as_slice() else { return Ok(()) };
    let alone = [whole(model, 0, first)?, whole(model, 0, second)?];

    let half = second.target.len() / 2;
    model.step(&[Chunk::new(2, 0, &second.target[..half]).of(&second.source)])?;
    let together = model.step(&[
        Chunk::new(2, half, &second.target[half..=half]).of(&second.source),
        Chunk::new(3, 0, &first.target).of(&first.source),
        Chunk::new(1, 0, &second.target[..2]).of(&second.source),
    ])?;
    let rows = first.target.len();
    ensure_same_bits(golden, "a decode row", together.row(0), alone[1].row(half))?;
    ensure_same_bits(golden, "a prefill", together.rows(1..1 + rows).data(), alone[0].data())?;
    let last = together.rows(1 + rows..3 + rows);
    ensure_same_bits(golden, "a second prefill", last.data(), alone[1].rows(0..2).data())
}

/// A translation that is given up leaves nothing behind: a shorter source in its pages reads its own tokens only.
///
/// # Errors
/// The leftovers change a bit.
pub fn an_abandoned_translation_leaves_nothing(golden: &Golden, model: &mut CpuModel) -> Result<()> {
    let mut all = recorded(golden)?;
    all.sort_by_key(|r| r.source.len());
    let (short, long) = (all.first().context("no translation")?, all.last().context("no translation")?);
    ensure!(short.source.len() < long.source.len(), "{}: sources of one length", golden.name);
    let expected = whole(model, 1, short)?;
    model.step(&[Chunk::new(0, 0, &long.target[..3]).of(&long.source)])?;
    let found = whole(model, 0, short)?;
    ensure_same_bits(golden, "an abandoned translation", found.data(), expected.data())
}
