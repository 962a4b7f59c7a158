//! Plugin and checkpoint to runner: open, trace, resolve, lower, load, size.

use std::collections::BTreeSet;
use std::sync::Arc;

use metrale_graph::checkpoint::{Headers, TensorInfo};
use metrale_graph::resolve::{Report, Resolution, resolve, unclaimed};
use metrale_graph::verify::{VerifyError, verify};
use metrale_graph::{Attrs, Graph, OpenModel, StateDecl};
use metrale_kernels::KernelError;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::{Cpu, Isa};
use metrale_plugin_api::abi::PluginModule_Ref;

use crate::device::cpu::{CpuPlan, LoadError, Numerics, States, WeightLoader, kv_bytes_per_token};
use crate::exec::runner::RowMetadata;
use crate::exec::{ModelRunner, RunnerLimits};
use crate::lower::{LowerError, Taps, lower};
use crate::plugin::PluginError;
use crate::weights::{ModelSource, Progress, Stage};

/// Rows of one pass through the head.
const LM_HEAD_ROWS: usize = 64;
/// KV cache when the user does not say: this, or what one sequence of full length needs.
const DEFAULT_KV_BYTES: u64 = 1 << 30;

/// What a user decides about a runner.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// CPU threads.
    pub threads: usize,
    /// Instruction set of the CPU kernels.
    pub isa: Isa,
    /// How numbers are computed.
    pub numerics: Numerics,
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
    /// Tensors that nothing asks for are an error.
    pub strict_weights: bool,
    /// Patterns of tensors that are meant to go unused.
    pub ignored_tensors: Vec<String>,
    /// Whether values between layers can be read after a step.
    pub taps: Taps,
}

/// Why there is no runner.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The plugin refused the configuration or failed to describe an entry point.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The traced graph breaks a rule.
    #[error("error[P0302]: plugin `{plugin}`: {}", list(problems))]
    Graph {
        /// Crate name.
        plugin: String,
        /// Every problem.
        problems: Vec<VerifyError>,
    },
    /// Tensors are missing or misshaped.
    #[error("{report}\n   note: the checkpoint is {checkpoint}, the plugin `{plugin}`")]
    Weights {
        /// Crate name.
        plugin: String,
        /// The checkpoint.
        checkpoint: String,
        /// Every problem.
        report: Report,
    },
    /// Tensors that nothing asks for, under `--strict-weights`.
    #[error("error[P0404]: {0}")]
    Unclaimed(String),
    /// No kernel for an op.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A weight cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The states cannot be allocated.
    #[error("error[P0601]: {0}")]
    States(#[from] KernelError),
    /// The KV cache cannot hold one sequence.
    #[error(
        "error[P0602]: a sequence of {max_model_len} tokens needs {needed} bytes of KV cache, and there are {available}\n   help: raise --kv-cache-memory-bytes or lower --max-model-len to at most {fits}"
    )]
    KvCache {
        /// Longest sequence.
        max_model_len: usize,
        /// What it needs.
        needed: u64,
        /// What there is.
        available: u64,
        /// The longest sequence that fits.
        fits: usize,
    },
    /// The model needs something that this device does not do.
    #[error("error[P0501]: {0}")]
    Unsupported(String),
}

fn list(problems: &[VerifyError]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n   ")
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
    /// Bytes of activation buffers.
    pub activation_bytes: usize,
    /// Lines that the user should see.
    pub notes: Vec<String>,
}

/// Everything that the plugin describes.
struct Traced {
    text: Graph,
    lm_head: Graph,
    others: Vec<Graph>,
    facts: ModelFacts,
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
    let headers = source.map(ModelSource::headers);
    let (text_weights, head_weights) = resolve_all(&traced, headers, options, &plugin, source, &mut notes)?;

    let states = &traced.text.states;
    let text_plan = lower(&traced.text, &text_weights, states, options.taps)?;
    let head_plan = lower(&traced.lm_head, &head_weights, states, Taps::Drop)?;

    let (limits, kv_cache_bytes) = size(&traced.facts, states, options, &mut notes)?;
    let cpu =
        Cpu::with_isa(options.threads, options.isa).map_err(|e| BuildError::Unsupported(e.to_string()))?;
    let progress = Progress::new(Stage::Load, headers.map_or(0, Headers::num_bytes));
    let on_bytes = |bytes| progress.advance(bytes);
    let mut loader = WeightLoader::new(cpu.pool(), source, &on_bytes);
    let text = CpuPlan::new(text_plan, &mut loader, limits.max_num_batched_tokens)?;
    let lm_head = CpuPlan::new(head_plan, &mut loader, LM_HEAD_ROWS)?;
    drop(progress);

    let activation_bytes = text.buffer_bytes() + lm_head.buffer_bytes();
    let states = States::new(states, options.kv_dtype, limits.block_size, limits.num_blocks)?;
    let runner = ModelRunner {
        cpu,
        text,
        lm_head,
        states,
        numerics: options.numerics,
        limits,
        rows: RowMetadata::default(),
    };
    Ok(BuiltModel { runner, facts: traced.facts, kv_cache_bytes, activation_bytes, notes })
}

/// Opens the model and traces every entry point that it has.
fn trace(
    module: PluginModule_Ref,
    attrs: &Attrs,
    source: Option<&ModelSource>,
    plugin: &str,
) -> Result<Traced, BuildError> {
    let failed = |entry| move |failure| PluginError::from_failure(plugin, entry, failure);
    let names: Option<BTreeSet<String>> =
        source.map(|s| s.headers().iter().map(|t| t.name.clone()).collect());
    let exists: Option<metrale_graph::host::TensorExists> = names
        .map(|names| Arc::new(move |name: &str| names.contains(name)) as metrale_graph::host::TensorExists);
    let model = OpenModel::open(module, attrs, exists).map_err(failed(None))?;
    let info = model.info().map_err(failed(Some("info")))?;

    let entry = |name, index| model.trace(name, index).map_err(failed(Some(name)));
    let (text, lm_head) = (entry("text", 0)?, entry("lm_head", 0)?);
    let mut others = Vec::new();
    for depth in 0..info.size("mtp_layers").unwrap_or(0) {
        others.push(entry("mtp", depth)?);
    }
    for name in ["encoder", "vision"] {
        if info.bool(&format!("has_{name}")) == Some(true) {
            others.push(entry(name, 0)?);
        }
    }
    let problems: Vec<_> = [&text, &lm_head].into_iter().chain(&others).flat_map(verify).collect();
    if !problems.is_empty() {
        return Err(BuildError::Graph { plugin: plugin.to_owned(), problems });
    }
    let size = |key: &str| info.size(key).unwrap_or(0);
    let facts = ModelFacts {
        num_layers: size("num_layers"),
        vocab_size: size("vocab_size"),
        context_length: size("context_length"),
        info,
    };
    Ok(Traced { text, lm_head, others, facts })
}

/// Matches all entry points with the checkpoint and reports every problem at once.
fn resolve_all(
    traced: &Traced,
    headers: Option<&Headers>,
    options: &RunnerOptions,
    plugin: &str,
    source: Option<&ModelSource>,
    notes: &mut Vec<String>,
) -> Result<(Resolution, Resolution), BuildError> {
    let (text, mut report) = resolve(&traced.text, headers);
    let (lm_head, head_report) = resolve(&traced.lm_head, headers);
    report.problems.extend(head_report.problems);
    let mut claimed: BTreeSet<String> = text.claimed.union(&lm_head.claimed).cloned().collect();
    for graph in &traced.others {
        let (weights, other) = resolve(graph, headers);
        let absent = weights.claimed.iter().all(|n| claimed.contains(n)) && other.num_missing > 0;
        if absent {
            notes.push(format!(
                "the checkpoint has no weights for the entry point `{}`; it is disabled",
                graph.entry
            ));
        } else {
            report.problems.extend(other.problems);
        }
        claimed.extend(weights.claimed);
    }
    if !report.is_empty() {
        let checkpoint = source.map_or_else(String::new, |s| s.path().display().to_string());
        return Err(BuildError::Weights { plugin: plugin.to_owned(), checkpoint, report });
    }
    if let Some(text) =
        headers.and_then(|h| describe_unclaimed(&unclaimed(h, &claimed, &options.ignored_tensors)))
    {
        if options.strict_weights {
            return Err(BuildError::Unclaimed(text));
        }
        notes.push(text);
    }
    Ok((text, lm_head))
}

fn describe_unclaimed(tensors: &[&TensorInfo]) -> Option<String> {
    const SHOWN: usize = 5;
    if tensors.is_empty() {
        return None;
    }
    let bytes: u64 = tensors.iter().map(|t| t.num_bytes).sum();
    let names: Vec<_> = tensors.iter().take(SHOWN).map(|t| format!("{} {:?}", t.name, t.shape)).collect();
    let more = tensors.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!(
        "{} tensors ({bytes} bytes) are not used by this model: {}{more}",
        tensors.len(),
        names.join(", ")
    ))
}

/// Decides limits and the size of the KV cache.
fn size(
    facts: &ModelFacts,
    states: &[StateDecl],
    options: &RunnerOptions,
    notes: &mut Vec<String>,
) -> Result<(RunnerLimits, u64), BuildError> {
    let block_size = options.block_size;
    let block_bytes = (kv_bytes_per_token(states, options.kv_dtype) * block_size) as u64;
    let mut max_model_len = options.max_model_len.unwrap_or(facts.context_length);
    // Page 0 is never handed out.
    let bytes_for = |tokens: usize| (tokens.div_ceil(block_size) as u64 + 1) * block_bytes;
    let blocks_per_seq = max_model_len.div_ceil(block_size) as u64;
    let wanted = (blocks_per_seq.saturating_mul(options.max_num_seqs as u64) + 1).saturating_mul(block_bytes);
    let available = options
        .kv_cache_bytes
        .unwrap_or_else(|| DEFAULT_KV_BYTES.max(bytes_for(max_model_len)).min(memory_for_kv()));
    let fits = ((available / block_bytes.max(1)).saturating_sub(1) as usize).saturating_mul(block_size);
    if fits < max_model_len {
        if options.max_model_len.is_some() || fits == 0 {
            return Err(BuildError::KvCache {
                max_model_len,
                needed: bytes_for(max_model_len),
                available,
                fits,
            });
        }
        notes.push(format!("the context is limited to {fits} of the model's {max_model_len} tokens, as many as the KV cache holds"));
        max_model_len = fits;
    }
    let bytes = wanted.min(available);
    let num_blocks = (bytes / block_bytes.max(1)) as usize;
    let limits = RunnerLimits {
        max_num_batched_tokens: options.max_num_batched_tokens.max(options.max_num_seqs),
        max_num_seqs: options.max_num_seqs,
        max_model_len,
        block_size,
        num_blocks,
        vocab_size: facts.vocab_size,
        has_recurrent_state: false,
    };
    Ok((limits, num_blocks as u64 * block_bytes))
}

/// Half of what the machine has free, as far as it tells.
fn memory_for_kv() -> u64 {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?.to_owned();
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kb| kb * 1024)
    });
    available.map_or(u64::MAX, |bytes| bytes / 2)
}
