//! Whole models: a plugin and a checkpoint, all entry points traced, resolved and loaded, run over sequences.

use std::collections::BTreeSet;
use std::sync::Arc;

use metrale_graph::checkpoint::Headers;
use metrale_graph::dim::Symbol;
use metrale_graph::images::Grid;
use metrale_graph::resolve::{Report, Resolution, resolve};
use metrale_graph::{Attrs, Graph, OpenModel};
use metrale_plugin_api::abi::PluginModule_Ref;

use crate::batch::Batch;
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::interpret::{Keep, Outputs, run};
use crate::state::Sequence;
use crate::tensor::Tensor;
use crate::vision::{self, ImageRows};
use crate::weights::Weights;

/// One entry point with its weights.
#[derive(Debug)]
pub struct Entry {
    /// What is computed.
    pub graph: Graph,
    /// From what.
    pub weights: Weights,
    claimed: BTreeSet<String>,
}

impl Entry {
    /// Runs one step of this entry point.
    ///
    /// # Errors
    /// The first op that cannot be computed.
    pub fn run(
        &self,
        batch: &Batch,
        sequences: &mut [&mut Sequence],
        keep: Keep,
    ) -> Result<Outputs, ModelError> {
        Ok(run(&self.graph, &self.weights, batch, sequences, keep)?)
    }
}

/// A model ready to run.
#[derive(Debug)]
pub struct Model {
    info: Attrs,
    text: Entry,
    lm_head: Entry,
    mtp: Vec<Entry>,
    /// One per MTP depth, or none.
    mtp_heads: Vec<Entry>,
    encoder: Option<Entry>,
    vision: Option<Entry>,
}

/// New tokens of one sequence.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// Continues here.
    pub sequence: &'a mut Sequence,
    /// With these.
    pub token_ids: &'a [i64],
    /// What some of them stand for.
    pub images: Option<&'a ImageRows>,
}

/// What the decoder computed for the tokens of one chunk.
#[derive(Clone, Debug)]
pub struct Forward {
    /// After the final norm, `[tokens, hidden_size]`.
    pub hidden: Tensor,
    /// `[tokens, vocab_size]`
    pub logits: Tensor,
    /// The residual stream: the embedding, then after each layer, `[tokens, hidden_size]` each.
    pub layers: Vec<Tensor>,
}

impl Model {
    /// Opens a checkpoint with a plugin. `max_model_len` is the longest sequence that will be run, where the model depends
    /// on it.
    ///
    /// # Errors
    /// The plugin refuses, or the checkpoint lacks tensors. An MTP head that the checkpoint does not have is left out.
    pub fn open(
        plugin: PluginModule_Ref,
        checkpoint: &Checkpoint,
        max_model_len: Option<usize>,
    ) -> Result<Self, ModelError> {
        let attrs = checkpoint.attrs().clone().with_some("engine.max_model_len", max_model_len);
        let names: BTreeSet<String> = checkpoint.headers().iter().map(|t| t.name.clone()).collect();
        let model = OpenModel::open(plugin, &attrs, Some(Arc::new(move |name| names.contains(name))))?;
        Self::load(&model, Some(checkpoint))
    }

    /// Opens a model without a checkpoint: its weights are small numbers that depend on their names only.
    ///
    /// # Errors
    /// The plugin refuses.
    pub fn dummy(plugin: PluginModule_Ref, config_json: &str) -> Result<Self, ModelError> {
        let attrs = Attrs::new().with("config.json", config_json);
        Self::load(&OpenModel::open(plugin, &attrs, None)?, None)
    }

    fn load(model: &OpenModel, checkpoint: Option<&Checkpoint>) -> Result<Self, ModelError> {
        let info = model.info()?;
        let text = entry(model, "text", 0, checkpoint)?;
        let lm_head = entry(model, "lm_head", 0, checkpoint)?;
        let trunk = &text.claimed | &lm_head.claimed;
        let mut mtp = Vec::new();
        for depth in 0..info.size("mtp_layers").unwrap_or(0) {
            mtp.extend(optional_entry(model, "mtp", depth, checkpoint, &trunk)?);
        }
        let has_mtp_head = info.bool("has_mtp_head").unwrap_or(false);
        let mtp_heads = (0..if has_mtp_head { mtp.len() } else { 0 })
            .map(|depth| entry(model, "mtp_head", depth, checkpoint))
            .collect::<Result<_, _>>()?;
        let has_encoder = info.bool("has_encoder").unwrap_or(false);
        let encoder = has_encoder.then(|| entry(model, "encoder", 0, checkpoint)).transpose()?;
        let has_vision = info.bool("has_vision").unwrap_or(false);
        let vision = has_vision.then(|| entry(model, "vision", 0, checkpoint)).transpose()?;
        Ok(Self { info, text, lm_head, mtp, mtp_heads, encoder, vision })
    }

    /// Facts that the plugin states.
    #[must_use]
    pub fn info(&self) -> &Attrs {
        &self.info
    }

    /// The decoder.
    #[must_use]
    pub fn text(&self) -> &Entry {
        &self.text
    }

    /// Hidden states to logits.
    #[must_use]
    pub fn lm_head(&self) -> &Entry {
        &self.lm_head
    }

    /// MTP depths that the checkpoint has.
    #[must_use]
    pub fn mtp_entries(&self) -> &[Entry] {
        &self.mtp
    }

    /// The encoder, if there is one.
    #[must_use]
    pub fn encoder(&self) -> Option<&Entry> {
        self.encoder.as_ref()
    }

    /// The vision tower, if there is one.
    #[must_use]
    pub fn vision(&self) -> Option<&Entry> {
        self.vision.as_ref()
    }

    /// Runs the vision tower over the patches of images, `[P, width]`, in merge-block order. Returns a row per block.
    ///
    /// # Errors
    /// There is no tower, or an op cannot be computed.
    pub fn see(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Tensor, ModelError> {
        let entry = self.vision.as_ref().ok_or(ModelError::NoEntry { entry: "vision" })?;
        let batch = vision::patches(&entry.graph, pixels, grids, self.merge_size())?;
        output(&entry.run(&batch, &mut [], Keep::Outputs)?, "rows").cloned()
    }

    /// Runs the decoder over new tokens of one or several sequences, in one step.
    ///
    /// # Errors
    /// The first op that cannot be computed.
    pub fn forward(&self, chunks: &mut [Chunk<'_>]) -> Result<Vec<Forward>, ModelError> {
        let rows: Vec<usize> = chunks.iter().map(|c| c.token_ids.len()).collect();
        let batch = self.text_batch(chunks, &rows)?;
        let mut sequences: Vec<&mut Sequence> = chunks.iter_mut().map(|c| &mut *c.sequence).collect();
        let outputs = self.text.run(&batch, &mut sequences, Keep::Outputs)?;
        for (sequence, rows) in sequences.iter_mut().zip(&rows) {
            sequence.num_tokens += rows;
        }
        let hidden = output(&outputs, "final_hidden")?;
        let logits = self.logits(hidden)?;
        let layers: Vec<&Tensor> =
            outputs.taps.iter().filter(|((name, _), _)| name == "hidden").map(|(_, x)| x).collect();
        let of_chunk = |range: std::ops::Range<usize>| Forward {
            hidden: hidden.rows(range.clone()),
            logits: logits.rows(range.clone()),
            layers: layers.iter().map(|x| x.rows(range.clone())).collect(),
        };
        Ok(batch.ranges(Symbol::T).into_iter().map(of_chunk).collect())
    }

    /// Tokens, positions and image rows of a step.
    fn text_batch(&self, chunks: &[Chunk<'_>], rows: &[usize]) -> Result<Batch, ModelError> {
        let token_ids = chunks.iter().flat_map(|c| c.token_ids.iter().copied()).collect();
        let spans = chunks.iter().map(|c| positions(c.sequence.num_tokens, c.token_ids.len()));
        let plain: Vec<i64> = spans.flatten().collect();
        let batch = Batch::new().segments(Symbol::T, rows).ids("token_ids", token_ids);
        if self.vision.is_none() {
            return Ok(batch.ids("positions", plain));
        }
        let span = |c: &Chunk<'_>| c.sequence.num_tokens..c.sequence.num_tokens + c.token_ids.len();
        let sequences: Vec<_> = chunks.iter().map(|c| (c.images, span(c))).collect();
        let (merge, width) = (self.merge_size(), self.info.size("hidden_size").unwrap_or(0));
        vision::feed(batch, &sequences, merge, width)
    }

    fn merge_size(&self) -> usize {
        self.info.size("vision.merge_size").unwrap_or(1).max(1)
    }

    /// [`Model::forward`] for one sequence.
    ///
    /// # Errors
    /// The first op that cannot be computed.
    pub fn advance(&self, sequence: &mut Sequence, token_ids: &[i64]) -> Result<Forward, ModelError> {
        let mut results = self.forward(&mut [Chunk { sequence, token_ids, images: None }])?;
        results.pop().ok_or(ModelError::NoEntry { entry: "text" })
    }

    /// Logits of normed hidden states, `[rows, hidden_size]` to `[rows, vocab_size]`.
    ///
    /// # Errors
    /// The first op that cannot be computed.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, ModelError> {
        logits(&self.lm_head, hidden)
    }

    /// Runs one MTP depth: `hidden[i]` of the slot at `first_position + i` and the token after it. Returns what the next depth
    /// is fed with, and logits.
    ///
    /// # Errors
    /// There is no such depth, or an op cannot be computed.
    pub fn mtp(
        &self,
        depth: usize,
        sequence: &mut Sequence,
        (hidden, next_ids): (&Tensor, &[i64]),
        first_position: usize,
    ) -> Result<(Tensor, Tensor), ModelError> {
        let entry = self.mtp.get(depth).ok_or(ModelError::NoEntry { entry: "mtp" })?;
        let batch = Batch::new()
            .segments(Symbol::T, &[next_ids.len()])
            .floats("hidden", hidden.clone())
            .ids("next_ids", next_ids.to_vec())
            .ids("positions", positions(first_position, next_ids.len()).collect());
        let batch = batch.ints("mrope_positions", vision::equal_streams(first_position, next_ids.len())?);
        let outputs = entry.run(&batch, &mut [sequence], Keep::Outputs)?;
        let head = self.mtp_heads.get(depth).unwrap_or(&self.lm_head);
        let logits = logits(head, output(&outputs, "head_in")?)?;
        Ok((output(&outputs, "recycle")?.clone(), logits))
    }

    /// Runs the encoder over the source tokens of one sequence and fills its cross states. Returns hidden states
    /// `[source tokens, hidden_size]`.
    ///
    /// # Errors
    /// There is no encoder, or an op cannot be computed.
    pub fn encode(&self, sequence: &mut Sequence, source_ids: &[i64]) -> Result<Tensor, ModelError> {
        let entry = self.encoder.as_ref().ok_or(ModelError::NoEntry { entry: "encoder" })?;
        let batch = Batch::new()
            .segments(Symbol::S, &[source_ids.len()])
            .ids("source_ids", source_ids.to_vec())
            .ids("source_positions", positions(0, source_ids.len()).collect());
        output(&entry.run(&batch, &mut [sequence], Keep::Outputs)?, "encoder_hidden").cloned()
    }
}

/// What a head makes of hidden states.
fn logits(head: &Entry, hidden: &Tensor) -> Result<Tensor, ModelError> {
    let batch = Batch::new().segments(Symbol::T, &hidden.shape()[..1]).floats("hidden", hidden.clone());
    output(&head.run(&batch, &mut [], Keep::Outputs)?, "logits").cloned()
}

fn positions(first: usize, count: usize) -> impl Iterator<Item = i64> {
    (first..first + count).map(|p| p as i64)
}

fn output<'o>(outputs: &'o Outputs, name: &'static str) -> Result<&'o Tensor, ModelError> {
    outputs.by_name.get(name).ok_or(ModelError::NoEntry { entry: name })
}

fn entry(
    model: &OpenModel,
    name: &str,
    index: usize,
    checkpoint: Option<&Checkpoint>,
) -> Result<Entry, ModelError> {
    let graph = model.trace(name, index)?;
    let (resolution, report) = resolve(&graph, headers(checkpoint));
    if report.is_empty() { load(graph, &resolution, checkpoint) } else { Err(ModelError::Weights(report)) }
}

/// An entry point that a checkpoint may leave out whole: nothing of it is there but what it shares with `trunk`.
fn optional_entry(
    model: &OpenModel,
    name: &str,
    index: usize,
    checkpoint: Option<&Checkpoint>,
    trunk: &BTreeSet<String>,
) -> Result<Option<Entry>, ModelError> {
    let graph = model.trace(name, index)?;
    let (resolution, report): (Resolution, Report) = resolve(&graph, headers(checkpoint));
    if report.is_empty() {
        return load(graph, &resolution, checkpoint).map(Some);
    }
    if resolution.claimed.is_subset(trunk) { Ok(None) } else { Err(ModelError::Weights(report)) }
}

fn headers(checkpoint: Option<&Checkpoint>) -> Option<&Headers> {
    checkpoint.map(Checkpoint::headers)
}

fn load(graph: Graph, resolution: &Resolution, checkpoint: Option<&Checkpoint>) -> Result<Entry, ModelError> {
    let weights = Weights::load(resolution, &|tensor| checkpoint.map_or(&[], |c| c.bytes_of(tensor)))?;
    Ok(Entry { graph, weights, claimed: resolution.claimed.clone() })
}
