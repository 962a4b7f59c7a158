//! What can be wrong with a plugin: a code, one sentence, the place in the author's terms, and an action.
//!
//! Codes: P01 discovery and manifest, P02 ABI, P03 trace, P07 trust. The text is the same in the log, on the command
//! line and over HTTP; [`Explanation`] has the fields.

mod explanation;
mod words;

use std::fmt;
use std::path::PathBuf;

use metrale_graph::PluginFailure;
use serde::{Deserialize, Serialize};

pub use explanation::Explanation;

/// Version of this core, for messages.
pub const CORE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why a plugin or a folder of plugins cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PluginError {
    /// plugin.toml cannot be read or is wrong.
    Manifest {
        /// The file.
        path: PathBuf,
        /// One sentence, with line and column where known.
        problem: String,
    },
    /// Nothing that is ready describes the model.
    NoPlugin {
        /// `` model_type `qwen4` ``.
        wanted: String,
        /// Each searched folder, with what is in it.
        searched: Vec<String>,
        /// Plugins that describe the model and cannot be used, with the reason.
        refused: Vec<String>,
    },
    /// Two plugins that are ready describe the same model.
    Conflict {
        /// The `model_type` (or class, or GGUF architecture) that both declare.
        model_type: String,
        /// Name and folder of each.
        plugins: Vec<(String, PathBuf)>,
    },
    /// A search folder cannot be read.
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        problem: String,
    },
    /// `--plugin TYPE=NAME` cannot be followed.
    Override {
        /// TYPE.
        model_type: String,
        /// NAME.
        name: String,
        /// Why not.
        problem: String,
    },
    /// plugin.toml says something else than the manifest inside the library.
    ManifestMismatch {
        /// plugin.toml.
        path: PathBuf,
        /// Each key that differs: key, on disk, in the library.
        differences: Vec<(String, String, String)>,
    },
    /// The library is not there.
    NoLibrary {
        /// Where it should be.
        path: PathBuf,
        /// Whether the folder is a crate, whose library still has to be built.
        is_crate: bool,
        /// The library where cargo put it.
        built: Option<PathBuf>,
    },
    /// The manifest lists ops that this core does not have.
    MissingOps {
        /// Plugin.
        name: String,
        /// Ops with versions.
        ops: Vec<String>,
        /// The manifest's hint at the core it was written for.
        core: Option<String>,
    },
    /// No plugin of this name.
    UnknownName {
        /// The name.
        name: String,
        /// Names that there are.
        known: Vec<String>,
    },
    /// Another plugin of the same name was found first.
    SameName {
        /// The name.
        name: String,
        /// Folder of the first.
        first: PathBuf,
    },
    /// The library is another plugin's library under a second name.
    SameFile {
        /// The library.
        path: PathBuf,
        /// The first plugin.
        first: String,
    },
    /// Built for another ABI major.
    AbiMajor {
        /// Manifest or library.
        path: PathBuf,
        /// Its ABI major.
        found: u32,
    },
    /// The file is not a library that this machine can load.
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// The property that is wrong.
        what: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The dynamic linker refused the library.
    Load {
        /// The library.
        path: PathBuf,
        /// What the linker says.
        problem: String,
    },
    /// The author's code panicked.
    Panicked {
        /// Plugin.
        plugin: String,
        /// `` opened the model ``, `` traced `text` ``.
        doing: String,
        /// Layer that was being described.
        layer: Option<usize>,
        /// The panic's message.
        message: String,
        /// `file:line`; empty if unknown.
        place: String,
    },
    /// The root module has another layout than this core's.
    Layout {
        /// The library.
        path: PathBuf,
        /// The first difference, one line.
        problem: String,
    },
    /// The child process that opened the library died.
    Crashed {
        /// Plugin.
        name: String,
        /// `SIGSEGV`, `exit status 3`.
        how: String,
    },
    /// The child process that ran a conformance check died or hung.
    CheckDied {
        /// Plugin.
        name: String,
        /// The check.
        check: String,
        /// `SIGSEGV`, `no answer within 120 s`.
        how: String,
    },
    /// The child process that opened the library did not answer in time.
    TimedOut {
        /// Plugin.
        name: String,
        /// The limit.
        limit_ms: u64,
    },
    /// The library has no entry symbol.
    NoEntrySymbol {
        /// The library.
        path: PathBuf,
        /// What it exports instead.
        exports: Vec<String>,
    },
    /// The child process could not be started or understood.
    Probe {
        /// The library.
        path: PathBuf,
        /// What happened.
        problem: String,
    },
    /// A call into the plugin ended with an error.
    Call {
        /// Plugin.
        plugin: String,
        /// Entry point; none while the model was opened.
        entry: Option<String>,
        /// Layer that was being described.
        layer: Option<usize>,
        /// The op that was refused: number and name.
        op: Option<(usize, String)>,
        /// What happened.
        message: String,
        /// `file:line`; empty if unknown.
        place: String,
        /// What to do; may be empty.
        help: String,
    },
    /// Anyone may replace the plugin.
    WorldWritable {
        /// Folder or file.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// The library is not the one that was locked.
    HashMismatch {
        /// Plugin.
        name: String,
        /// The library.
        path: PathBuf,
        /// Hex digest in plugins.lock or plugin.toml.
        locked: String,
        /// Hex digest of the file.
        found: String,
        /// The file that holds the expected digest.
        by: PathBuf,
    },
    /// A lock exists and does not list the plugin.
    NotLocked {
        /// Plugin.
        name: String,
        /// plugins.lock.
        lock: PathBuf,
    },
    /// plugins.lock cannot be read.
    Lock {
        /// plugins.lock.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl PluginError {
    /// From the failure of `open` or, with an entry point, of `trace`.
    #[must_use]
    pub fn from_failure(plugin: &str, entry: Option<&str>, failure: PluginFailure) -> Self {
        let plugin = plugin.to_owned();
        let place = if failure.source.line > 0 { failure.source.to_string() } else { String::new() };
        if failure.panicked {
            let doing = entry.map_or_else(|| "opened the model".to_owned(), |e| format!("traced `{e}`"));
            let message = failure.message.strip_prefix("panicked: ").unwrap_or(&failure.message).to_owned();
            return Self::Panicked { plugin, doing, layer: failure.layer, message, place };
        }
        Self::Call {
            plugin,
            entry: entry.map(str::to_owned),
            layer: failure.layer,
            op: failure.op,
            message: failure.message,
            place,
            help: failure.help,
        }
    }

    /// `P0102`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.explanation().code
    }

    /// One line for a table: the sentence without what the table says anyway.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::MissingOps { ops, core, .. } => {
                let hint = core.as_ref().map_or_else(String::new, |c| format!(" (core {c})"));
                format!("needs op {}{hint}; this is {CORE_VERSION}", ops.join(", "))
            }
            Self::Crashed { name, how } => {
                format!("crashed while probed ({how}); `metrale plugins inspect {name}`")
            }
            Self::SameName { first, .. } => format!("a plugin of this name is in {}", first.display()),
            other => other.explanation().what,
        }
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.explanation().fmt(f)
    }
}

impl std::error::Error for PluginError {}
