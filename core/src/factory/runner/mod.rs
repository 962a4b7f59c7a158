//! Plugin and checkpoint to runner: open, trace, resolve, lower, size, load.

mod device;
mod error;
mod size;
mod trace;
mod weights;

use metrale_graph::checkpoint::Headers;
use metrale_graph::resolve::Resolution;
use metrale_graph::{Attrs, Graph, StateDecl};
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_plugin_api::abi::PluginModule_Ref;

use crate::device::{Checkpoint, LOCAL_PAGE, MaxRows, Plans};
use crate::exec::{Chain, ModelRunner, Rows, Vision};
use crate::images::ImageSettings;
use crate::lower::{Taps, Target, lower};
use crate::weights::{ModelSource, Progress, Stage};

pub use device::DeviceOptions;
use device::OpenDevice;
pub use error::BuildError;
use size::{Needs, size};
use trace::{Traced, trace};
use weights::resolve_all;

/// Rows of one pass through the head, at least.
const LM_HEAD_ROWS: usize = 64;

/// What to do with the multi-token-prediction head of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtpHead {
    /// Leave it out.
    Skip,
    /// Load it where there is one.
    Optional,
    /// A model without one cannot be built.
    Required,
}

/// What a user decides about a runner.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Where the model runs, and how numbers are computed there.
    pub device: DeviceOptions,
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Longest sequence; the model's own limit if `None`.
    pub max_model_len: Option<usize>,
    /// Most sequences in a step.
    pub max_num_seqs: usize,
    /// Most rows in a step.
    pub max_num_batched_tokens: usize,
    /// Tokens per KV page.
    pub block_size: usize,
    /// Size of the KV cache.
    pub kv_cache_bytes: Option<u64>,
    /// Copies of recurrent state that prefixes can be continued from; chosen by their size if `None`.
    pub num_state_snapshots: Option<usize>,
    /// What to do with a multi-token-prediction head.
    pub mtp: MtpHead,
    /// Most rows of a sequence in one step that may be taken back.
    pub max_num_drafts: usize,
    /// Tensors that nothing asks for are an error.
    pub strict_weights: bool,
    /// Patterns of tensors that are meant to go unused.
    pub ignored_tensors: Vec<String>,
    /// Whether values between layers can be read after a step.
    pub taps: Taps,
}

/// Facts of a model that its plugin states.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Decoder layers.
    pub num_layers: usize,
    /// Logits per row.
    pub vocab_size: usize,
    /// Longest context that the model was made for.
    pub context_length: usize,
    /// All facts.
    pub info: Attrs,
}

/// A runner and what was learnt while building it.
#[derive(Debug)]
pub struct BuiltModel {
    /// Ready to step.
    pub runner: ModelRunner,
    /// What the plugin says of the model.
    pub facts: ModelFacts,
    /// Bytes of KV cache.
    pub kv_cache_bytes: u64,
    /// Bytes of recurrent state, snapshots included.
    pub recurrent_bytes: u64,
    /// Copies of recurrent state that prefixes can be continued from.
    pub num_state_snapshots: usize,
    /// Bytes of activation buffers.
    pub activation_bytes: usize,
    /// Lines that the user should see.
    pub notes: Vec<String>,
}

/// Builds a runner. `attrs` is what the plugin's `open` gets; without a `source` the weights are dummies.
///
/// # Errors
/// See [`BuildError`]; all missing and misshaped tensors are reported together, before any is read.
pub fn build_runner(
    module: PluginModule_Ref,
    attrs: &Attrs,
    source: Option<&ModelSource>,
    options: &RunnerOptions,
) -> Result<BuiltModel, BuildError> {
    let name = module.build().crate_name.as_str();
    let plugin = name.strip_prefix("metrale-").unwrap_or(name).to_owned();
    let mut notes = Vec::new();

    let traced = trace(module, attrs, source, &plugin)?;
    let mut weights = resolve_all(&traced, source, options, &plugin, &mut notes)?;
    match options.mtp {
        MtpHead::Required if weights.mtp.is_empty() => {
            return Err(BuildError::NoMtpHead { plugin, is_described: !traced.mtp.is_empty() });
        }
        MtpHead::Optional | MtpHead::Required => {}
        MtpHead::Skip => weights.mtp.clear(),
    }
    let states = all_states(&traced, weights.mtp.len());
    let device = OpenDevice::open(&options.device)?;
    if !device.target().images && weights.vision.take().is_some() {
        notes.push("this device runs no vision tower yet: the model takes text only".to_owned());
    }
    let images = ImageSettings::of(&traced.facts.info)?.filter(|_| weights.vision.is_some());
    let plans = lower_all(&traced, &weights, &states, device.target(), options.taps)?;

    device.check_drafts(&plans, options.max_num_drafts)?;
    let budget = device.budget(&plans, options)?;
    let needs = Needs {
        states: &states,
        has_encoder: traced.encoder.is_some(),
        draft_row_bytes: plans.text.recurrent_inputs().map(|(_, width)| width * size_of::<f32>()).sum(),
    };
    let sizes = size(&traced.facts, &needs, (options, budget), &mut notes)?;
    let limits = sizes.limits;
    let max = MaxRows {
        text: limits.max_num_batched_tokens,
        lm_head: LM_HEAD_ROWS,
        encoder: limits.max_model_len.next_multiple_of(LOCAL_PAGE),
        vision: images.as_ref().map_or(0, ImageSettings::max_patches).next_multiple_of(LOCAL_PAGE),
        num_seqs: limits.max_num_seqs,
        model_len: limits.max_model_len,
    };
    let vision = images
        .zip(plans.vision.as_ref())
        .map(|(settings, tower)| Vision::new(settings.merge_size, tower.position_table, max.vision));
    let progress = Progress::new(Stage::Load, source.map_or(0, |s| Headers::num_bytes(s.headers())));
    let on_bytes = |bytes| progress.advance(bytes);
    let checkpoint = Checkpoint::new(source, &on_bytes);
    let device = device.load(plans, &checkpoint, max, (&states, sizes.states))?;
    drop(progress);

    let activation_bytes = device.activation_bytes();
    let runner = ModelRunner {
        device,
        vision,
        limits,
        encoder_rows: traced.encoder.as_ref().map(|_| max.encoder),
        num_snapshots: sizes.num_snapshots,
        rows: Rows::default(),
        num_rows: 0,
        chain: Chain::default(),
        sources: Rows::default(),
        source_ids: Vec::new(),
    };
    Ok(BuiltModel {
        runner,
        facts: traced.facts,
        kv_cache_bytes: sizes.kv_cache_bytes,
        recurrent_bytes: sizes.recurrent_bytes,
        num_state_snapshots: sizes.num_snapshots,
        activation_bytes,
        notes,
    })
}

/// The states of all entry points that run. One that several entry points name is one state.
fn all_states(traced: &Traced, num_mtp: usize) -> Vec<StateDecl> {
    let mut states = traced.text.states.clone();
    for graph in traced.encoder.iter().chain(&traced.mtp[..num_mtp]) {
        for state in &graph.states {
            if !states.iter().any(|known| known.name == state.name) {
                states.push(state.clone());
            }
        }
    }
    states
}

fn lower_all(
    traced: &Traced,
    weights: &weights::Resolved,
    states: &[StateDecl],
    target: Target,
    taps: Taps,
) -> Result<Plans, BuildError> {
    let plan = |graph: &Graph, weights: &Resolution| lower(graph, weights, states, target);
    let encoder = traced.encoder.as_ref().zip(weights.encoder.as_ref());
    let vision = traced.vision.as_ref().zip(weights.vision.as_ref());
    Ok(Plans {
        text: lower(&traced.text, &weights.text, states, Target { taps, ..target })?,
        lm_head: plan(&traced.lm_head, &weights.lm_head)?,
        encoder: encoder.map(|(graph, weights)| plan(graph, weights)).transpose()?,
        mtp: traced
            .mtp
            .iter()
            .zip(&weights.mtp)
            .map(|(graph, (weights, _))| plan(graph, weights))
            .collect::<Result<_, _>>()?,
        mtp_heads: traced
            .mtp_heads
            .iter()
            .zip(weights.mtp.iter().filter_map(|(_, head)| head.as_ref()))
            .map(|(graph, weights)| plan(graph, weights))
            .collect::<Result<_, _>>()?,
        vision: vision.map(|(graph, weights)| plan(graph, weights)).transpose()?,
    })
}
