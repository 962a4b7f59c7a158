//! The model factory: a model directory or file becomes a served model.

mod backend;
mod device;
mod runner;
mod text;
mod translation;

use std::sync::Arc;

use anyhow::Context;
use metrale_graph::checkpoint::Dtype;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_plugin_api::abi::PluginModule_Ref;

use crate::config::{DtypeChoice, EngineConfig, LoadFormat};
use crate::exec::{ModelRunner, StepRunner};
use crate::images::{ImagePolicy, ImageProcessor, ImageSettings};
use crate::lower::Taps;
use crate::plugin::Registry;
use crate::plugin::probe::Prober;
use crate::sched::{EngineHandle, SchedulerConfig};
use crate::server::ServedModel;
use crate::speculative::DraftMethod;
use crate::weights::{ModelSource, hub};

pub use crate::weights::open_attrs;
pub use runner::{BuildError, BuiltModel, DeviceOptions, ModelFacts, MtpHead, RunnerOptions, build_runner};

/// Loads the model that a configuration names: finds its files and its plugin, builds the runner, starts the engine.
///
/// # Errors
/// Whatever stands in the way, in the words of the part that met it.
pub fn load(config: &EngineConfig) -> anyhow::Result<ServedModel> {
    let built = build(config)?;
    let (source, built) = (built.source, built.model);
    let facts = built.facts.clone();
    let (limits, weight_bytes_per_step) = (built.runner.limits(), built.runner.weight_bytes_per_step());
    let images = images(config, &built)?;
    let text = text::load(config, &source, limits.vocab_size)?;
    tracing::info!("{}", text.generation());
    let translation = translation::load(config, &source, &facts, &text)?;
    let eos_token_ids = text.generation().eos_token_id.clone();
    let engine = EngineHandle::spawn(
        Box::new(built.runner),
        SchedulerConfig {
            eos_token_ids: eos_token_ids.clone(),
            enable_prefix_caching: config.prefix_caching(),
            seed: Some(config.seed),
            speculative: config.speculative_config,
            ..SchedulerConfig::default()
        },
    );
    Ok(ServedModel {
        engine: Arc::new(engine),
        defaults: text::defaults(&text, translation.is_some()),
        text: text::served(text),
        images,
        translation: translation.map(Arc::new),
        root: config.model.clone(),
        max_model_len: limits.max_model_len,
        weight_bytes_per_step,
        vocab_size: limits.vocab_size,
        eos_token_ids,
    })
}

/// What makes patches of pictures, if the model and its checkpoint have a vision tower.
fn images(config: &EngineConfig, built: &BuiltModel) -> anyhow::Result<Option<ImageProcessor>> {
    if built.runner.image_rows().is_none() {
        return Ok(None);
    }
    if let Some(directory) = &config.allowed_local_media_path {
        anyhow::ensure!(
            directory.is_dir(),
            "--allowed-local-media-path {}: expected a directory",
            directory.display()
        );
    }
    let policy = ImagePolicy {
        allowed_directory: config.allowed_local_media_path.clone(),
        max_per_prompt: config.limit_images_per_prompt,
    };
    Ok(ImageSettings::of(&built.facts.info)?.map(|settings| ImageProcessor { settings, policy }))
}

/// Builds the runner of the model that a configuration names, without tokenizer and engine.
///
/// # Errors
/// As [`load`].
pub fn load_runner(config: &EngineConfig) -> anyhow::Result<ModelRunner> {
    Ok(build(config)?.model.runner)
}

struct Built {
    source: ModelSource,
    model: BuiltModel,
}

fn build(config: &EngineConfig) -> anyhow::Result<Built> {
    let path = hub::resolve(&config.model, config.revision.as_deref(), config.download_dir.as_deref())?;
    let source = match config.load_format {
        LoadFormat::Auto => ModelSource::open(&path)?,
        LoadFormat::Dummy => ModelSource::open_config(&path)?,
    };
    let plugin = find_plugin(config, &source)?;
    let options = runner_options(config, &source, plugin.ignored)?;
    let attrs = open_attrs(&source, options.max_model_len);
    let checkpoint = (config.load_format == LoadFormat::Auto).then_some(&source);
    let model = build_runner(plugin.module, &attrs, checkpoint, &options)?;
    report(&plugin.name, &model, &options, prefix_reuse(config, &model));
    Ok(Built { source, model })
}

struct FoundPlugin {
    name: String,
    module: PluginModule_Ref,
    ignored: Vec<String>,
}

/// Finds the plugin for the model and opens it.
fn find_plugin(config: &EngineConfig, source: &ModelSource) -> anyhow::Result<FoundPlugin> {
    let registry = match Prober::this_program() {
        Ok(prober) => Registry::load_probed(&config.plugins, &prober),
        Err(error) => {
            tracing::warn!(%error, "plugins are opened without a probe: this program cannot find itself");
            Registry::load(&config.plugins)
        }
    };
    tracing::info!("plugins\n{}", registry.table());
    for warning in registry.warnings() {
        tracing::warn!("{warning}");
    }
    let identity = ModelIdentity::of(source)?;
    let overrides = config.plugin.iter().map(|c| (c.model_type.clone(), c.plugin.clone())).collect();
    let gguf = identity.gguf_architecture.as_deref();
    let candidate = registry.resolve(&identity.model_type, &identity.architectures, gguf, &overrides)?;
    let models = candidate.manifest().map_or(&[][..], |m| &m.models);
    let ignored = models.iter().flat_map(|m| m.ignored.clone()).collect();
    Ok(FoundPlugin { name: candidate.name().to_owned(), module: candidate.open()?, ignored })
}

/// By what a plugin is chosen.
struct ModelIdentity {
    model_type: String,
    architectures: Vec<String>,
    gguf_architecture: Option<String>,
}

impl ModelIdentity {
    fn of(source: &ModelSource) -> anyhow::Result<Self> {
        let Some(files) = source.config() else {
            let gguf = source.headers().gguf().map(|m| m.architecture()).transpose()?;
            return Ok(Self {
                model_type: String::new(),
                architectures: Vec::new(),
                gguf_architecture: gguf.map(str::to_owned),
            });
        };
        let config =
            metrale_plugin_api::Config::from_json(&files.config).map_err(|e| anyhow::anyhow!("{e}"))?;
        let read = || -> metrale_plugin_api::Result<_> {
            Ok((
                config.optional("model_type")?.unwrap_or_default(),
                config.optional("architectures")?.unwrap_or_default(),
            ))
        };
        let (model_type, architectures) =
            read().with_context(|| source.path().join("config.json").display().to_string())?;
        Ok(Self { model_type, architectures, gguf_architecture: None })
    }
}

fn runner_options(
    config: &EngineConfig,
    source: &ModelSource,
    ignored_tensors: Vec<String>,
) -> anyhow::Result<RunnerOptions> {
    let float32 = config.dtype == DtypeChoice::Float32;
    let stored_f32 = source.headers().iter().all(|t| t.dtype == Dtype::F32);
    let keep_f32 =
        float32 || (config.dtype == DtypeChoice::Auto && stored_f32 && !source.headers().is_empty());
    Ok(RunnerOptions {
        device: device::choose(config, keep_f32)?,
        kv_dtype: if keep_f32 { KvDtype::F32 } else { KvDtype::BF16 },
        max_model_len: config.max_model_len,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        block_size: config.block_size,
        kv_cache_bytes: config.kv_cache_memory_bytes,
        num_state_snapshots: if config.prefix_caching() { config.state_snapshots } else { Some(0) },
        mtp: match config.speculative_config.map(|s| s.method) {
            Some(DraftMethod::Mtp) => MtpHead::Required,
            Some(DraftMethod::Ngram(_)) | None => MtpHead::Skip,
        },
        max_num_drafts: config.speculative_config.map_or(0, |s| s.num_speculative_tokens),
        strict_weights: config.strict_weights,
        ignored_tensors,
        taps: Taps::Drop,
    })
}

/// Where requests can continue from what earlier ones computed.
fn prefix_reuse(config: &EngineConfig, built: &BuiltModel) -> &'static str {
    let limits = built.runner.limits();
    if !config.prefix_caching() {
        "off"
    } else if limits.source.is_some() {
        "off: all that a target computes depends on its source"
    } else if !limits.has_recurrent_state {
        "at every page"
    } else if built.num_state_snapshots == 0 {
        "off: the model keeps recurrent state, and there are no state snapshots"
    } else {
        "at state snapshots: the last full page of a prompt"
    }
}

/// What was decided, in one place, and what the user should know.
fn report(plugin: &str, built: &BuiltModel, options: &RunnerOptions, prefix_reuse: &str) {
    let limits = built.runner.limits();
    tracing::info!(
        plugin,
        layers = built.facts.num_layers,
        vocab_size = built.facts.vocab_size,
        device = built.runner.device_description(),
        kv_dtype = ?options.kv_dtype,
        max_model_len = limits.max_model_len,
        max_num_seqs = limits.max_num_seqs,
        max_num_batched_tokens = limits.max_num_batched_tokens,
        kv_cache_bytes = built.kv_cache_bytes,
        kv_cache_tokens = (limits.num_blocks.saturating_sub(1)) * limits.block_size,
        recurrent_bytes = built.recurrent_bytes,
        state_snapshots = built.num_state_snapshots,
        prefix_reuse,
        max_num_drafts = limits.max_num_drafts,
        activation_bytes = built.activation_bytes,
        weight_bytes_per_step = built.runner.weight_bytes_per_step(),
        "model built"
    );
    for note in &built.notes {
        tracing::warn!("{note}");
    }
}
