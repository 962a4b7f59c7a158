//! What the engine needs to load and run a model: the flags that `serve` and `run` share.
//!
//! Every flag has an environment twin `METRALE_<FLAG>` and a key of the same name in the `--config` file.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::BoolishValueParser;

use super::size::{parse_count, parse_share, parse_size};
use crate::speculative::SpeculativeConfig;

/// Flags of the model, its plugins, memory and threads.
#[allow(clippy::struct_excessive_bools)] // Every flag is a switch of its own.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineConfig {
    /// Model directory, file, or Hugging Face id.
    #[arg(value_name = "MODEL", env = "METRALE_MODEL")]
    pub model: String,
    /// TOML file with defaults for these flags; flags and environment win over it.
    #[arg(long, value_name = "FILE", env = "METRALE_CONFIG")]
    pub config: Option<PathBuf>,

    /// Directory to search for plugins; may be given several times.
    #[arg(
        long,
        value_name = "DIR",
        env = "METRALE_PLUGINS",
        value_delimiter = ',',
        help_heading = "Plugins"
    )]
    pub plugins: Vec<PathBuf>,
    /// Plugin to use for a model type, as TYPE=NAME; may be given several times.
    #[arg(
        long,
        value_name = "TYPE=NAME",
        env = "METRALE_PLUGIN",
        value_delimiter = ',',
        help_heading = "Plugins"
    )]
    pub plugin: Vec<PluginChoice>,

    /// Longest context (prompt and output) in tokens; the model's own limit if left out.
    #[arg(long, value_name = "TOKENS", env = "METRALE_MAX_MODEL_LEN", value_parser = parse_count, help_heading = "Scheduling and memory")]
    pub max_model_len: Option<usize>,
    /// Most sequences in one step.
    #[arg(long, value_name = "N", env = "METRALE_MAX_NUM_SEQS", default_value = "64", value_parser = parse_count, help_heading = "Scheduling and memory")]
    pub max_num_seqs: usize,
    /// Most tokens in one step.
    #[arg(long, value_name = "TOKENS", env = "METRALE_MAX_NUM_BATCHED_TOKENS", default_value = "2048", value_parser = parse_count, help_heading = "Scheduling and memory")]
    pub max_num_batched_tokens: usize,
    /// Size of the KV cache (4G, 512M); chosen from free memory if left out.
    #[arg(long, value_name = "BYTES", env = "METRALE_KV_CACHE_MEMORY_BYTES", value_parser = parse_size, help_heading = "Scheduling and memory")]
    pub kv_cache_memory_bytes: Option<u64>,
    /// Share of a GPU's memory that weights, caches and activations may take, when `--kv-cache-memory-bytes` is left out.
    #[arg(long, value_name = "SHARE", env = "METRALE_GPU_MEMORY_UTILIZATION", default_value = "0.9", value_parser = parse_share, help_heading = "Scheduling and memory")]
    pub gpu_memory_utilization: f32,
    /// Tokens per page of the KV cache.
    #[arg(long, value_name = "TOKENS", env = "METRALE_BLOCK_SIZE", default_value = "16", value_parser = parse_count, help_heading = "Scheduling and memory")]
    pub block_size: usize,
    /// Reuse the cached state of common prompt prefixes.
    #[arg(long, env = "METRALE_ENABLE_PREFIX_CACHING", default_value = "true", action = clap::ArgAction::SetTrue, value_parser = BoolishValueParser::new(), overrides_with = "no_enable_prefix_caching", help_heading = "Scheduling and memory")]
    pub enable_prefix_caching: bool,
    /// Turn prefix caching off.
    #[arg(long, overrides_with = "enable_prefix_caching", help_heading = "Scheduling and memory")]
    pub no_enable_prefix_caching: bool,
    /// Copies of recurrent state kept for prefix reuse, in models that have such state; chosen by size if left out.
    #[arg(long, value_name = "N", env = "METRALE_STATE_SNAPSHOTS", help_heading = "Scheduling and memory")]
    pub state_snapshots: Option<usize>,
    /// Guess tokens ahead and verify them in one step, as a JSON object, e.g.
    /// `{"method": "mtp", "num_speculative_tokens": 1}`: by the model's multi-token-prediction head (`mtp`) or from the
    /// sequence itself (`ngram`), 1 to 3 tokens.
    #[arg(
        long,
        value_name = "JSON",
        env = "METRALE_SPECULATIVE_CONFIG",
        help_heading = "Scheduling and memory"
    )]
    pub speculative_config: Option<SpeculativeConfig>,
    /// Give the same output whatever else is in the batch.
    #[arg(long, env = "METRALE_BATCH_INVARIANT", value_parser = BoolishValueParser::new(), help_heading = "Scheduling and memory")]
    pub batch_invariant: bool,

    /// Where to run.
    #[arg(
        long,
        env = "METRALE_DEVICE",
        value_enum,
        default_value = "auto",
        help_heading = "Device and weights"
    )]
    pub device: DeviceChoice,
    /// Launch every kernel of a step on its own instead of replaying recorded steps; GPU only.
    #[arg(long, env = "METRALE_ENFORCE_EAGER", value_parser = BoolishValueParser::new(), help_heading = "Device and weights")]
    pub enforce_eager: bool,
    /// CPU threads for the model; as many as the system offers if left out.
    #[arg(long, value_name = "N", env = "METRALE_THREADS", value_parser = parse_count, help_heading = "Device and weights")]
    pub threads: Option<usize>,
    /// Instruction set of the CPU kernels; the best one of this processor if left out.
    #[arg(long, env = "METRALE_CPU_ISA", value_enum, help_heading = "Device and weights")]
    pub cpu_isa: Option<IsaChoice>,
    /// Arithmetic type of the activations.
    #[arg(
        long,
        env = "METRALE_DTYPE",
        value_enum,
        default_value = "auto",
        help_heading = "Device and weights"
    )]
    pub dtype: DtypeChoice,
    /// `dummy` fills the weights with random numbers.
    #[arg(
        long,
        env = "METRALE_LOAD_FORMAT",
        value_enum,
        default_value = "auto",
        help_heading = "Device and weights"
    )]
    pub load_format: LoadFormat,
    /// Treat tensors that nothing asks for as an error.
    #[arg(long, env = "METRALE_STRICT_WEIGHTS", value_parser = BoolishValueParser::new(), help_heading = "Device and weights")]
    pub strict_weights: bool,
    /// Seed of dummy weights and of requests without their own seed.
    #[arg(
        long,
        value_name = "N",
        env = "METRALE_SEED",
        default_value = "0",
        help_heading = "Device and weights"
    )]
    pub seed: u64,
    /// Branch, tag or commit of a Hugging Face model.
    #[arg(long, value_name = "REV", env = "METRALE_REVISION", help_heading = "Device and weights")]
    pub revision: Option<String>,
    /// Where downloads go; the Hugging Face cache if left out.
    #[arg(long, value_name = "DIR", env = "METRALE_DOWNLOAD_DIR", help_heading = "Device and weights")]
    pub download_dir: Option<PathBuf>,
    /// Accepted for compatibility; metrale never runs code from a checkpoint.
    #[arg(long, env = "METRALE_TRUST_REMOTE_CODE", value_parser = BoolishValueParser::new(), help_heading = "Device and weights")]
    pub trust_remote_code: bool,

    /// Directory or id of the tokenizer, if it is not the model's.
    #[arg(long, value_name = "PATH", env = "METRALE_TOKENIZER", help_heading = "Text")]
    pub tokenizer: Option<String>,
    /// Serve token ids only.
    #[arg(long, env = "METRALE_SKIP_TOKENIZER_INIT", value_parser = BoolishValueParser::new(), help_heading = "Text")]
    pub skip_tokenizer_init: bool,
    /// Let requests name images by file URLs, below this directory only.
    #[arg(long, value_name = "DIR", env = "METRALE_ALLOWED_LOCAL_MEDIA_PATH", help_heading = "Images")]
    pub allowed_local_media_path: Option<PathBuf>,
    /// Most images of one request.
    #[arg(
        long,
        value_name = "N",
        env = "METRALE_LIMIT_IMAGES_PER_PROMPT",
        default_value = "16",
        help_heading = "Images"
    )]
    pub limit_images_per_prompt: usize,
    /// Source language of requests that name none, for a translation model; found out from the text if left out.
    #[arg(long, value_name = "LANG", env = "METRALE_SRC_LANG", help_heading = "Text")]
    pub src_lang: Option<String>,
    /// Target language of requests that name none, for a translation model.
    #[arg(long, value_name = "LANG", env = "METRALE_TGT_LANG", help_heading = "Text")]
    pub tgt_lang: Option<String>,
    /// Jinja file to use instead of the model's chat template.
    #[arg(long, value_name = "FILE", env = "METRALE_CHAT_TEMPLATE", help_heading = "Text")]
    pub chat_template: Option<PathBuf>,
    /// Template variables as a JSON object, e.g. `{"enable_thinking": false}`; a request's own win.
    #[arg(
        long,
        value_name = "JSON",
        env = "METRALE_DEFAULT_CHAT_TEMPLATE_KWARGS",
        default_value = "{}",
        help_heading = "Text"
    )]
    pub default_chat_template_kwargs: JsonObject,
    /// Source of sampling defaults: `auto` (the model's `generation_config.json`), `vllm` (none of the model's), or a directory.
    #[arg(
        long,
        value_name = "auto|vllm|DIR",
        env = "METRALE_GENERATION_CONFIG",
        default_value = "auto",
        help_heading = "Text"
    )]
    pub generation_config: String,
    /// Sampling defaults as a JSON object; they win over the generation config.
    #[arg(
        long,
        value_name = "JSON",
        env = "METRALE_OVERRIDE_GENERATION_CONFIG",
        default_value = "{}",
        help_heading = "Text"
    )]
    pub override_generation_config: JsonObject,

    /// Log lines for people or for machines.
    #[arg(long, env = "METRALE_LOG_FORMAT", value_enum, default_value = "text", help_heading = "Logging")]
    pub log_format: LogFormat,
}

impl EngineConfig {
    /// Whether prompt prefixes are cached, after both spellings of the flag.
    #[must_use]
    pub fn prefix_caching(&self) -> bool {
        self.enable_prefix_caching && !self.no_enable_prefix_caching
    }
}

/// `--plugin TYPE=NAME`: the plugin that serves a model type when several could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginChoice {
    /// `model_type` of config.json.
    pub model_type: String,
    /// Plugin name.
    pub plugin: String,
}

impl FromStr for PluginChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((model_type, plugin)) if !model_type.is_empty() && !plugin.is_empty() => {
                Ok(Self { model_type: model_type.to_owned(), plugin: plugin.to_owned() })
            }
            _ => Err("expected TYPE=NAME, for example gemma=acme-gemma".to_owned()),
        }
    }
}

/// A JSON object given on the command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonObject(pub serde_json::Map<String, serde_json::Value>);

impl FromStr for JsonObject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(Self).map_err(|error| format!("expected a JSON object: {error}"))
    }
}

/// Where the model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceChoice {
    /// CUDA if there is a device, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// Instruction set of the CPU kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IsaChoice {
    /// None in particular.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and VNNI.
    Avx512,
}

/// Arithmetic type of the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DtypeChoice {
    /// The checkpoint's type where the device has it.
    Auto,
    /// 32-bit floats.
    Float32,
    /// Brain floats.
    Bfloat16,
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LoadFormat {
    /// The checkpoint.
    Auto,
    /// Random numbers; no checkpoint is read.
    Dummy,
}

/// Shape of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}
