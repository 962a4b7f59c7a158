//! What the interpreter must compute for every golden model of a plugin; each function returns the largest differences.

use anyhow::{Context, Result, ensure};
use metrale_core::images::{ImagePolicy, ImageProcessor, ImageSettings};
use metrale_graph::images::{PlacedImage, token_positions};
use metrale_plugin_api::abi::PluginModule_Ref;
use metrale_reference::{Chunk, Forward, ImageRows, Model, Sequence, Tensor};

use crate::differences::{Differences, TOLERANCE};
use crate::golden::{Golden, Goldens};

/// A promise about one golden model, checked with a model that is ready to run.
pub type Check = fn(&Golden, &Model) -> Result<Differences>;

/// Runs a check on every golden model of a plugin, and returns a line per model and whether all hold.
///
/// # Errors
/// A model cannot be opened or run.
pub fn check_all(plugin: PluginModule_Ref, check: Check) -> Result<(Vec<String>, bool)> {
    let (mut lines, mut all_hold) = (Vec::new(), true);
    for golden in &Goldens::of(plugin)?.models {
        let longest = if golden.is_seq2seq() { None } else { Some(golden.token_ids()?.len()) };
        let model =
            Model::open(plugin, &golden.checkpoint()?, longest).with_context(|| golden.name.clone())?;
        let differences = check(golden, &model).with_context(|| golden.name.clone())?;
        all_hold &= differences.within_tolerance();
        lines.push(format!("{:<40} {differences}", golden.name));
    }
    Ok((lines, all_hold))
}

/// One pass over all tokens: logits, every layer's output, the final hidden states.
///
/// # Errors
/// The model cannot be run.
pub fn whole_pass_matches(golden: &Golden, model: &Model) -> Result<Differences> {
    let mut differences = Differences::default();
    let images = images(golden, model)?;
    let result = advance(model, &mut Sequence::new(), &golden.token_ids()?, images.as_ref())?;
    differences.compare("logits", &result.logits, &golden.required_array("logits_f32_nocache.npy")?)?;
    differences.compare("hidden", &result.hidden, &golden.required_array("hidden_f32.npy")?)?;
    let layers = golden.required_array("layer_hidden_f32.npy")?;
    // What the last layer gives is recorded after the final norm only, as in `hidden_f32.npy`.
    let num_layers = result.layers.len() - 1;
    ensure!(layers.shape()[0] >= num_layers, "{} hidden states for {num_layers} layers", layers.shape()[0]);
    for (layer, found) in result.layers[..num_layers].iter().enumerate() {
        let expected = Tensor::new(&layers.shape()[1..], layers.row(layer).to_vec())?;
        differences.compare("layers", found, &expected)?;
    }
    Ok(differences)
}

/// Prefill, then one token at a time: as recorded, and as the whole pass.
///
/// # Errors
/// The model cannot be run.
pub fn cached_decoding_matches(golden: &Golden, model: &Model) -> Result<Differences> {
    let tokens = golden.token_ids()?;
    let prompt = golden.prompt_len()?;
    let sizes: Vec<usize> =
        std::iter::once(prompt).chain(std::iter::repeat_n(1, tokens.len() - prompt)).collect();
    let mut differences = Differences::default();
    let images = images(golden, model)?;
    let decoded = in_chunks(model, (&mut Sequence::new(), images.as_ref()), &tokens, &sizes)?;
    if !golden.cached_differs() {
        differences.compare("recorded", &decoded, &golden.required_array("logits_f32.npy")?)?;
    }
    let whole = advance(model, &mut Sequence::new(), &tokens, images.as_ref())?;
    differences.compare("whole pass", &decoded, &whole.logits)?;
    Ok(differences)
}

/// Chunks of any size give what the whole pass gives.
///
/// # Errors
/// The model cannot be run.
pub fn chunks_match_the_whole_pass(golden: &Golden, model: &Model) -> Result<Differences> {
    let tokens = golden.token_ids()?;
    let images = images(golden, model)?;
    let whole = advance(model, &mut Sequence::new(), &tokens, images.as_ref())?;
    let mut differences = Differences::default();
    for size in [3, 16, 17] {
        let sizes: Vec<usize> = tokens.chunks(size).map(<[i64]>::len).collect();
        let chunked = in_chunks(model, (&mut Sequence::new(), images.as_ref()), &tokens, &sizes)?;
        differences.compare(&format!("chunks of {size}"), &chunked, &whole.logits)?;
    }
    Ok(differences)
}

/// A prefill and a sequence that is being decoded, in one step, give what each gives alone.
///
/// # Errors
/// The model cannot be run.
pub fn sequences_of_a_batch_are_independent(golden: &Golden, model: &Model) -> Result<Differences> {
    let tokens = golden.token_ids()?;
    let (first, second) = (tokens.clone(), tokens.iter().rev().copied().collect::<Vec<_>>());
    let half = second.len() / 2;
    let images = images(golden, model)?;
    let first_alone = advance(model, &mut Sequence::new(), &first, images.as_ref())?;
    let second_alone = model.advance(&mut Sequence::new(), &second)?;

    let (mut a, mut b) = (Sequence::new(), Sequence::new());
    model.advance(&mut b, &second[..half])?;
    let mut chunks = [
        Chunk { sequence: &mut b, token_ids: &second[half..=half], images: None },
        Chunk { sequence: &mut a, token_ids: &first, images: images.as_ref() },
    ];
    let [second_step, first_step]: [Forward; 2] =
        model.forward(&mut chunks)?.try_into().ok().context("two chunks give two results")?;
    let mut differences = Differences::default();
    differences.compare("prefill", &first_step.logits, &first_alone.logits)?;
    differences.compare("decode", &second_step.logits, &second_alone.logits.rows(half..half + 1))?;
    Ok(differences)
}

/// The MTP head over all slots, at once and continued; models without one pass.
///
/// # Errors
/// The model cannot be run, or lacks the head that was recorded.
pub fn mtp_matches(golden: &Golden, model: &Model) -> Result<Differences> {
    let mut differences = Differences::default();
    let Some(logits) = golden.array("mtp_logits_f32.npy")? else { return Ok(differences) };
    let tokens = golden.token_ids()?;
    let slots = tokens.len() - 1;
    let mut sequence = Sequence::new();
    let images = images(golden, model)?;
    let hidden = advance(model, &mut sequence, &tokens, images.as_ref())?.hidden.rows(0..slots);
    let next_ids = &tokens[1..];
    let (recycled, found) = model.mtp(0, &mut sequence.clone(), (&hidden, next_ids), 0)?;
    differences.compare("mtp logits", &found, &logits)?;
    differences.compare("mtp hidden", &recycled, &golden.required_array("mtp_hidden_f32.npy")?)?;

    let half = slots / 2;
    model.mtp(0, &mut sequence, (&hidden.rows(0..half), &next_ids[..half]), 0)?;
    let (_, rest) = model.mtp(0, &mut sequence, (&hidden.rows(half..slots), &next_ids[half..]), half)?;
    differences.compare("mtp continued", &rest, &found.rows(half..slots))?;
    Ok(differences)
}

/// Encoder output and decoder logits of every row, at its real length: in one pass, and one token at a time.
///
/// # Errors
/// The model cannot be run.
pub fn translation_matches(golden: &Golden, model: &Model) -> Result<Differences> {
    let mut differences = Differences::default();
    let encoded = golden.required_array("encoder_hidden_f32.npy")?;
    let logits = golden.required_array("logits_f32.npy")?;
    let (steps, vocab) = (logits.shape()[1], logits.shape()[2]);
    let (source_len, width) = (encoded.shape()[1], encoded.shape()[2]);
    for (row, (source, target)) in golden.translations()?.iter().enumerate() {
        let mut sequence = Sequence::new();
        let hidden = model.encode(&mut sequence, source)?;
        let expected = Tensor::new(&[source_len, width], encoded.row(row).to_vec())?;
        differences.compare("encoder", &hidden, &expected.rows(0..source.len()))?;

        let target = &target[..steps];
        let expected = Tensor::new(&[steps, vocab], logits.row(row).to_vec())?;
        let whole = model.advance(&mut sequence.clone(), target)?;
        differences.compare("whole pass", &whole.logits, &expected)?;
        let decoded = in_chunks(model, (&mut sequence, None), target, &vec![1; steps])?;
        differences.compare("decoded", &decoded, &expected)?;
    }
    Ok(differences)
}

/// Both rows in one decoder step give what each gives alone.
///
/// # Errors
/// The model cannot be run.
pub fn translations_of_a_batch_are_independent(golden: &Golden, model: &Model) -> Result<Differences> {
    let mut differences = Differences::default();
    let rows = golden.translations()?;
    let mut sequences = Vec::new();
    for (source, _) in &rows {
        let mut sequence = Sequence::new();
        model.encode(&mut sequence, source)?;
        sequences.push(sequence);
    }
    let mut alone = Vec::new();
    for (sequence, (_, target)) in sequences.iter().zip(&rows) {
        alone.push(model.advance(&mut sequence.clone(), target)?.logits);
    }
    let mut chunks: Vec<_> = sequences
        .iter_mut()
        .zip(&rows)
        .map(|(sequence, (_, target))| Chunk { sequence, token_ids: target, images: None })
        .collect();
    for (together, alone) in model.forward(&mut chunks)?.iter().zip(&alone) {
        differences.compare("logits", &together.logits, alone)?;
    }
    Ok(differences)
}

/// What the tower makes of the images of a golden model, and the positions of its tokens; models without images pass.
///
/// # Errors
/// The tower cannot be run.
pub fn images_match(golden: &Golden, model: &Model) -> Result<Differences> {
    let mut differences = Differences::default();
    let Some(images) = images(golden, model)? else { return Ok(differences) };
    differences.compare("image rows", &images.rows, &golden.required_array("image_embeds.npy")?)?;
    let positions = golden.required_array("mrope_position_ids.npy")?;
    let merge = model.info().size("vision.merge_size").context("no merge size")?;
    let found = token_positions(&images.placed, merge, 0..positions.shape()[1]).concat();
    let found = Tensor::new(positions.shape(), found.into_iter().map(|p| p as f32).collect())?;
    differences.compare("positions", &found, &positions)?;
    Ok(differences)
}

/// The patches of a picture; models whose patches were not made of one pass.
///
/// # Errors
/// The picture cannot be processed, or becomes another number of patches.
pub fn patches_of_pictures_match(golden: &Golden, model: &Model) -> Result<Differences> {
    let differences = Differences::default();
    let (Some(picture), Some((placed, pixels))) = (golden.picture()?, golden.images()?) else {
        return Ok(differences);
    };
    let settings = ImageSettings::of(model.info())?.context("no vision tower")?;
    let policy = ImagePolicy { allowed_directory: None, max_per_prompt: 1 };
    let found = ImageProcessor { settings: settings.clone(), policy }.process(&picture)?;
    ensure!(found.grid == placed[0].grid, "{:?}, recorded {:?}", found.grid, placed[0].grid);
    // A pixel on the edge between two of its 256 levels may be rounded either way.
    let level = 1.01 / 255.0 / settings.std[0];
    let found = found.patches.iter().zip(pixels.data()).map(|(found, pixel)| (found - pixel).abs());
    let off = found.clone().filter(|difference| *difference > TOLERANCE).count();
    ensure!(found.clone().all(|difference| difference <= level), "pixels differ by more than one level");
    ensure!(off * 50 <= pixels.data().len(), "{off} of {} pixels differ", pixels.data().len());
    Ok(differences)
}

/// The images of a golden model as its tower sees them.
fn images(golden: &Golden, model: &Model) -> Result<Option<ImageRows>> {
    let Some((placed, pixels)) = golden.images()? else { return Ok(None) };
    let grids: Vec<_> = placed.iter().map(|image: &PlacedImage| image.grid).collect();
    let rows = model.see(&pixels, &grids)?;
    Ok(Some(ImageRows { placed, rows }))
}

fn advance(
    model: &Model,
    sequence: &mut Sequence,
    token_ids: &[i64],
    images: Option<&ImageRows>,
) -> Result<Forward> {
    let mut results = model.forward(&mut [Chunk { sequence, token_ids, images }])?;
    results.pop().context("one chunk gives one result")
}

/// Logits of all tokens, run in chunks of the given sizes.
fn in_chunks(
    model: &Model,
    (sequence, images): (&mut Sequence, Option<&ImageRows>),
    tokens: &[i64],
    sizes: &[usize],
) -> Result<Tensor> {
    let (mut data, mut vocab, mut start) = (Vec::new(), 0, 0);
    for size in sizes {
        let logits = advance(model, sequence, &tokens[start..start + size], images)?.logits;
        start += size;
        vocab = logits.width();
        data.extend_from_slice(logits.data());
    }
    Ok(Tensor::new(&[start, vocab], data)?)
}
