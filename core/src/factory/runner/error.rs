//! Why a model cannot be built.

use metrale_graph::resolve::Report;
use metrale_graph::verify::VerifyError;
use metrale_kernels::KernelError;

use crate::device::LoadError;
use crate::images::SettingsError;
use crate::lower::LowerError;
use crate::plugin::PluginError;

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
    /// The device cannot be used.
    #[error("error[P0503]: {0}")]
    Device(#[from] KernelError),
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
    /// The recurrent states of all sequences do not fit.
    #[error(
        "error[P0603]: the recurrent states of {max_num_seqs} sequences need {needed} bytes, and there are {available}\n   help: lower --max-num-seqs to at most {fits}"
    )]
    RecurrentState {
        /// Most sequences.
        max_num_seqs: usize,
        /// What they need.
        needed: u64,
        /// What there is.
        available: u64,
        /// As many sequences as fit.
        fits: u64,
    },
    /// What the plugin says of images makes no sense.
    #[error("error[P0305]: {0}")]
    Images(#[from] SettingsError),
    /// Drafts were asked for, and the model has nothing to draft with.
    #[error(
        "error[P0604]: --speculative-config asks for drafts by a multi-token-prediction head, and {}\n   help: leave it out, or let \"method\" be \"ngram\", which needs no head",
        if *is_described { "the checkpoint has no weights for it".to_owned() } else { format!("plugin `{plugin}` describes none for this model") }
    )]
    NoMtpHead {
        /// Crate name.
        plugin: String,
        /// The plugin has the entry point; its weights are missing.
        is_described: bool,
    },
    /// Drafts were asked for, and the device cannot take rows of this model back.
    #[error(
        "error[P0605]: --speculative-config: {reason}\n   help: leave it out, or run the model with --device cpu"
    )]
    NoDrafts {
        /// Why.
        reason: &'static str,
    },
}

fn list(problems: &[VerifyError]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n   ")
}
