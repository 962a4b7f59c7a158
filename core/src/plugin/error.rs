//! What can be wrong with a plugin: a code, one sentence, the place in the author's terms, and an action.
//!
//! Codes: P01 discovery and manifest, P02 ABI, P03 trace, P07 trust. The text is the same in the log, on the command
//! line and over HTTP; [`Explanation`] has the fields.

use std::fmt;
use std::path::PathBuf;

use metrale_graph::PluginFailure;
use metrale_plugin_api::abi::ABI_MAJOR;
use serde::{Deserialize, Serialize};

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

/// The fields of an error, for `--json` and for printing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// `P0102`.
    pub code: &'static str,
    /// One sentence.
    pub what: String,
    /// Where, in the author's terms.
    pub place: Option<String>,
    /// Labelled facts: wanted and found.
    pub facts: Vec<(&'static str, String)>,
    /// Something worth knowing.
    pub note: Option<String>,
    /// An action.
    pub help: Option<String>,
}

impl Explanation {
    fn new(code: &'static str, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), ..Self::default() }
    }

    fn at(self, place: impl Into<String>) -> Self {
        let place = place.into();
        Self { place: (!place.is_empty()).then_some(place), ..self }
    }

    fn fact(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.facts.push((label, value.into()));
        self
    }

    fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    fn help(self, help: impl Into<String>) -> Self {
        let help = help.into();
        Self { help: (!help.is_empty()).then_some(help), ..self }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.what)?;
        if let Some(place) = &self.place {
            write!(f, "\n  --> {place}")?;
        }
        let mut last = "";
        for (label, value) in &self.facts {
            write!(f, "\n   {:9} {value}", if *label == last { "" } else { label })?;
            last = label;
        }
        if let Some(note) = &self.note {
            write!(f, "\n   note: {note}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n   help: {help}")?;
        }
        Ok(())
    }
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

    /// All fields.
    #[must_use]
    pub fn explanation(&self) -> Explanation {
        match self {
            Self::Manifest { .. }
            | Self::NoPlugin { .. }
            | Self::Conflict { .. }
            | Self::Folder { .. }
            | Self::Override { .. }
            | Self::ManifestMismatch { .. }
            | Self::NoLibrary { .. }
            | Self::MissingOps { .. }
            | Self::UnknownName { .. }
            | Self::SameName { .. }
            | Self::SameFile { .. } => self.discovery(),
            Self::AbiMajor { .. }
            | Self::NotALibrary { .. }
            | Self::Load { .. }
            | Self::Panicked { .. }
            | Self::Layout { .. }
            | Self::Crashed { .. }
            | Self::CheckDied { .. }
            | Self::TimedOut { .. }
            | Self::NoEntrySymbol { .. }
            | Self::Probe { .. } => self.abi(),
            Self::Call { .. } => self.call(),
            Self::WorldWritable { .. }
            | Self::HashMismatch { .. }
            | Self::NotLocked { .. }
            | Self::Lock { .. } => self.trust(),
        }
    }

    fn discovery(&self) -> Explanation {
        use Explanation as E;
        match self {
            Self::Manifest { path, problem } => {
                E::new("P0101", format!("{}: {problem}", path.display())).help("correct the manifest")
            }
            Self::NoPlugin { wanted, searched, refused } => {
                let mut e = E::new("P0102", format!("no plugin can load {wanted}"));
                for folder in searched {
                    e = e.fact("searched", folder);
                }
                for plugin in refused {
                    e = e.fact("refused", plugin);
                }
                e.help(if refused.is_empty() {
                    "put a plugin for it into one of these folders, or name its folder with `--plugins DIR`"
                } else {
                    "see `metrale plugins list`; update metrale or the plugin"
                })
            }
            Self::Conflict { model_type, plugins } => {
                let mut e = E::new("P0103", format!("{} plugins describe `{model_type}`", plugins.len()));
                for (name, folder) in plugins {
                    e = e.fact("found", format!("{name}   {}", folder.display()));
                }
                let name = plugins.first().map_or("NAME", |(name, _)| name);
                e.help(format!("choose one with `--plugin {model_type}={name}`"))
            }
            Self::Folder { path, problem } => {
                E::new("P0104", format!("plugin folder {} cannot be read: {problem}", path.display()))
                    .help("correct `--plugins` or METRALE_PLUGIN_PATH")
            }
            Self::Override { model_type, name, problem } => {
                E::new("P0105", format!("`--plugin {model_type}={name}` cannot be followed: {problem}"))
                    .help("see `metrale plugins list` for names and model types")
            }
            Self::ManifestMismatch { path, differences } => {
                let mut e = E::new(
                    "P0106",
                    format!("{} says something else than the manifest inside the library", path.display()),
                );
                for (key, disk, library) in differences {
                    e = e.fact("on disk", format!("{key} = {disk}"));
                    e = e.fact("library", format!("{key} = {library}"));
                }
                e.help("build the library again after each change of plugin.toml")
            }
            Self::NoLibrary { path, is_crate, built } => {
                let file = path.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
                E::new("P0107", format!("{} is not there", path.display())).help(match built {
                    Some(built) => format!("`cp {} {}`", built.display(), path.display()),
                    None if *is_crate => {
                        format!("in that folder: `cargo build --release && cp target/release/{file} .`")
                    }
                    None => "put the library beside plugin.toml".to_owned(),
                })
            }
            Self::MissingOps { name, ops, .. } => E::new("P0108", format!("`{name}` {}", self.reason()))
                .help(format!("update metrale, or build {name} without {}", ops.join(", "))),
            Self::UnknownName { name, known } => {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                E::new("P0109", format!("there is no plugin `{name}`"))
                    .fact("found", known)
                    .help("name its folder with `--plugins DIR`")
            }
            Self::SameName { name, first } => {
                E::new("P0110", format!("a plugin named `{name}` is already in {}", first.display()))
                    .help("remove or rename one of them")
            }
            Self::SameFile { path, first } => {
                E::new("P0111", format!("{} is the library of plugin `{first}`", path.display()))
                    .help("remove the link, or put a library of its own there")
            }
            _ => E::default(),
        }
    }

    fn abi(&self) -> Explanation {
        use Explanation as E;
        match self {
            Self::AbiMajor { path, found } => E::new(
                "P0201",
                format!(
                    "{} was built for ABI {found}; this metrale reads ABI {ABI_MAJOR}",
                    path.display()
                ),
            )
            .help(if *found > ABI_MAJOR {
                format!("install a build for plugin-api {ABI_MAJOR}.x, or a metrale that reads ABI {found}")
            } else {
                format!("build the plugin with plugin-api {ABI_MAJOR}.x")
            }),
            Self::NotALibrary { path, what, expected, found } => {
                E::new("P0202", format!("{} is not a library for this machine: {what}", path.display()))
                    .fact("expected", expected)
                    .fact("found", found)
                    .help("build or download the plugin for this machine again")
            }
            Self::Load { path, problem } => {
                E::new("P0203", format!("{} cannot be loaded: {problem}", path.display()))
                    .help("a plugin links nothing but the system's C library; `metrale plugins inspect` lists what it needs")
            }
            Self::Panicked { plugin, doing, layer, message, place } => {
                let layer = layer.map_or_else(String::new, |l| format!(", layer {l}"));
                let place = if place.is_empty() { message.clone() } else { format!("{place}: {message}") };
                E::new("P0204", format!("plugin `{plugin}` panicked while it {doing}{layer}"))
                    .at(place)
                    .note("the server is unharmed; the model was not loaded")
            }
            Self::Layout { path, problem } => E::new(
                "P0205",
                format!("{} has another binary layout than plugin-api {ABI_MAJOR}: {problem}", path.display()),
            )
            .help(format!("build the plugin with an unmodified plugin-api {ABI_MAJOR}.x")),
            Self::Crashed { name, how } => {
                E::new("P0206", format!("plugin `{name}` crashed while it was probed ({how})"))
                    .note("it ran in a process of its own; nothing else is harmed")
                    .help("open the library in a debugger: it dies in its static initialisers or in `manifest`")
            }
            Self::CheckDied { name, check, how } => {
                E::new("P0210", format!("plugin `{name}` ended the process of check `{check}` ({how})"))
                    .note("it ran in a process of its own; nothing else is harmed")
                    .help("run the plugin's own tests in a debugger: `cargo test --test conformance`")
            }
            Self::TimedOut { name, limit_ms } => E::new(
                "P0207",
                format!("plugin `{name}` did not open within {} s", *limit_ms as f64 / 1000.0),
            )
            .help("opening a plugin must do no work: look at its static initialisers"),
            Self::NoEntrySymbol { path, exports } => {
                let exports = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
                E::new("P0208", format!("{} is a library but not a plugin", path.display()))
                    .fact("expected", metrale_plugin_api::abi::ENTRY_SYMBOL)
                    .fact("found", exports)
                    .help("write `metrale_plugin_api::export_plugin!(YourModel);` in src/lib.rs and build a cdylib")
            }
            Self::Probe { path, problem } => {
                E::new("P0209", format!("{} could not be probed: {problem}", path.display()))
                    .help("run `metrale plugins inspect` again; clear the cache folder if this stays")
            }
            _ => E::default(),
        }
    }

    fn call(&self) -> Explanation {
        let Self::Call { plugin, entry, layer, op, message, place, help } = self else {
            return Explanation::default();
        };
        let Some(entry) = entry else {
            return Explanation::new("P0303", format!("plugin `{plugin}` cannot open this model: {message}"))
                .at(place)
                .help(help);
        };
        let mut context = format!("entry {entry}");
        if let Some(layer) = layer {
            context.push_str(", layer ");
            context.push_str(&layer.to_string());
        }
        let (code, what) = match op {
            Some((number, name)) => {
                context.push_str(", op ");
                context.push_str(&number.to_string());
                context.push(' ');
                context.push_str(name);
                let known = metrale_graph::schema::find_op(name).is_some();
                (if known { "P0302" } else { "P0301" }, message.clone())
            }
            None => ("P0304", format!("plugin `{plugin}` cannot describe this model: {message}")),
        };
        let help = match code {
            "P0301" if help.is_empty() => "update metrale, or build the plugin without this op",
            _ => help,
        };
        let place = if place.is_empty() { plugin } else { place };
        Explanation::new(code, what).at(format!("{place}   ({context})")).help(help)
    }

    fn trust(&self) -> Explanation {
        use Explanation as E;
        match self {
            Self::WorldWritable { path, mode } => {
                E::new("P0701", format!("anyone may write to {} (mode {:o})", path.display(), mode & 0o7777))
                    .help(format!("`chmod o-w {}`", path.display()))
            }
            Self::HashMismatch { name, path, locked, found, by } => {
                E::new("P0702", format!("{} does not match {}", path.display(), by.display()))
                    .fact("locked", locked)
                    .fact("found", found)
                    .help(format!("`metrale plugins lock {name}` if you changed it on purpose"))
            }
            Self::NotLocked { name, lock } => {
                E::new("P0703", format!("plugin `{name}` is not in {}", lock.display()))
                    .help(format!("`metrale plugins lock {name}` if you trust it"))
            }
            Self::Lock { path, problem } => E::new("P0704", format!("{}: {problem}", path.display()))
                .help("write it anew with `metrale plugins lock`"),
            _ => E::default(),
        }
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.explanation().fmt(f)
    }
}

impl std::error::Error for PluginError {}
