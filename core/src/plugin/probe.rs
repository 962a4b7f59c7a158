//! Opens a library in a child process first, so that one that crashes or hangs is a result and not the end of this process.
//!
//! The child is `metrale plugins __probe FILE`; it prints one JSON line. Results are cached per file: canonical path, size,
//! modification time and sha256 have to match.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{PluginError, elf, library, trust};

/// How long a library may take to open.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Arguments that make the program probe the file named by the next one.
pub const CHILD_ARGS: [&str; 2] = ["plugins", "__probe"];

const ANSWER: &str = "metrale-probe:";

/// What a library says about itself once it is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// ABI major of its SDK.
    pub abi_major: u32,
    /// Version of its SDK.
    pub api_version: String,
    /// Crate that it was built from.
    pub crate_name: String,
    /// Version of that crate.
    pub crate_version: String,
    /// `arch-os`.
    pub target: String,
    /// The embedded plugin.toml.
    pub manifest: String,
}

/// Runs in the child: opens the library and reads what it says. Call nothing else of it.
///
/// # Errors
/// It is not a library, cannot be loaded, or is not a plugin.
pub fn examine(path: &Path) -> Result<ProbeReport, PluginError> {
    checked_link_facts(path)?;
    let module = library::open(path)?;
    let build = module.build();
    Ok(ProbeReport {
        abi_major: build.abi_major,
        api_version: build.api_version.as_str().to_owned(),
        crate_name: build.crate_name.as_str().to_owned(),
        crate_version: build.crate_version.as_str().to_owned(),
        target: build.target.as_str().to_owned(),
        manifest: module.manifest()().as_str().to_owned(),
    })
}

/// The line that the child prints.
#[must_use]
pub fn answer(result: &Result<ProbeReport, PluginError>) -> String {
    let json = serde_json::to_string(result).unwrap_or_default();
    format!("\n{ANSWER}{json}")
}

/// Looks at the file and requires the entry symbol.
///
/// # Errors
/// It is not a library for this machine, or exports no entry symbol of this ABI.
pub fn checked_link_facts(path: &Path) -> Result<elf::LinkFacts, PluginError> {
    let bytes = std::fs::read(path)
        .map_err(|e| PluginError::Load { path: path.to_owned(), problem: e.to_string() })?;
    let facts = elf::read(path, &bytes)?;
    let entry = metrale_plugin_api::abi::ENTRY_SYMBOL;
    if facts.exports.iter().any(|e| e == entry) {
        return Ok(facts);
    }
    let stem = entry.trim_end_matches(|c: char| c.is_ascii_digit());
    let other_abi = facts.exports.iter().find_map(|e| e.strip_prefix(stem)?.parse().ok());
    Err(match other_abi {
        Some(found) => PluginError::AbiMajor { path: path.to_owned(), found },
        None => PluginError::NoEntrySymbol { path: path.to_owned(), exports: facts.exports },
    })
}

/// Starts child processes and keeps their results.
#[derive(Clone, Debug)]
pub struct Prober {
    program: PathBuf,
    cache: Option<PathBuf>,
    limit: Duration,
}

impl Prober {
    /// Probes with `program`, which answers to [`CHILD_ARGS`]. No cache.
    #[must_use]
    pub fn with_program(program: PathBuf) -> Self {
        Self { program, cache: None, limit: LIMIT }
    }

    /// Probes with this program, which must be `metrale`, and keeps results in the user's cache folder.
    ///
    /// # Errors
    /// The system does not say what program this is.
    pub fn this_program() -> std::io::Result<Self> {
        let cache = dirs::cache_dir().map(|d| d.join("metrale").join("probes"));
        Ok(Self { cache, ..Self::with_program(std::env::current_exe()?) })
    }

    /// The program that is run as the child.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The folder that results are kept in.
    #[must_use]
    pub fn cache(&self) -> Option<&Path> {
        self.cache.as_deref()
    }

    /// Keeps results in a folder.
    #[must_use]
    pub fn with_cache(self, folder: PathBuf) -> Self {
        Self { cache: Some(folder), ..self }
    }

    /// Waits no longer than this.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The result of an earlier probe of this very file.
    #[must_use]
    pub fn cached(&self, path: &Path) -> Option<Result<ProbeReport, PluginError>> {
        let key = Key::of(path).ok()?;
        let text = std::fs::read_to_string(self.cache_file(&key)?).ok()?;
        let entry: CacheEntry = serde_json::from_str(&text).ok()?;
        (entry.key == key).then_some(entry.result)
    }

    /// Probes the library of plugin `name`, or takes the result of an earlier probe.
    ///
    /// # Errors
    /// What the child found, or how it died.
    pub fn probe(&self, name: &str, path: &Path) -> Result<ProbeReport, PluginError> {
        if let Some(result) = self.cached(path) {
            return result;
        }
        // Before the child sees it: a change meanwhile makes the entry stale, not wrong.
        let key = Key::of(path);
        let result = self.run_child(name, path);
        if let Ok(key) = key {
            self.store(key, &result);
        }
        result
    }

    fn run_child(&self, name: &str, path: &Path) -> Result<ProbeReport, PluginError> {
        let failed = |problem: String| PluginError::Probe { path: path.to_owned(), problem };
        let mut command = Command::new(&self.program);
        command.args(CHILD_ARGS).arg(path);
        let output = run(command, self.limit).map_err(|e| failed(e.to_string()))?;
        let Some(status) = output.status else {
            let limit_ms = self.limit.as_millis() as u64;
            return Err(PluginError::TimedOut { name: name.to_owned(), limit_ms });
        };
        match output.stdout.lines().rev().find_map(|l| l.strip_prefix(ANSWER)) {
            Some(json) if status.success() => serde_json::from_str(json)
                .unwrap_or_else(|e| Err(failed(format!("its answer is damaged: {e}")))),
            _ => Err(PluginError::Crashed { name: name.to_owned(), how: how_it_ended(status) }),
        }
    }

    fn cache_file(&self, key: &Key) -> Option<PathBuf> {
        let name = trust::sha256_of_bytes(key.path.as_os_str().as_encoded_bytes());
        Some(self.cache.as_ref()?.join(format!("{name}.json")))
    }

    /// A cache that cannot be written costs time, nothing else.
    fn store(&self, key: Key, result: &Result<ProbeReport, PluginError>) {
        // Not a property of the file.
        if matches!(result, Err(PluginError::Probe { .. })) {
            return;
        }
        let Some(file) = self.cache_file(&key) else { return };
        let entry = CacheEntry { key, result: result.clone() };
        if let Err(error) = write_whole(&file, &entry) {
            tracing::debug!(%error, file = %file.display(), "the probe's result was not kept");
        }
    }
}

/// Other processes see the old file or the new one.
fn write_whole(file: &Path, entry: &CacheEntry) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut new, entry)?;
    new.persist(file)?;
    Ok(())
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    path: PathBuf,
    size: u64,
    mtime: (i64, i64),
    sha256: String,
    core: String,
}

impl Key {
    fn of(path: &Path) -> std::io::Result<Self> {
        let path = path.canonicalize()?;
        let metadata = std::fs::metadata(&path)?;
        Ok(Self {
            size: metadata.size(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            sha256: trust::sha256_of(&path)?,
            core: super::error::CORE_VERSION.to_owned(),
            path,
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct CacheEntry {
    key: Key,
    result: Result<ProbeReport, PluginError>,
}

/// What a child process left behind.
#[derive(Debug)]
pub struct Output {
    /// How it ended; `None` when it was killed because it took too long.
    pub status: Option<ExitStatus>,
    /// What it printed.
    pub stdout: String,
}

/// Runs a command with nothing to read and its error output passed on, for at most `limit`.
///
/// # Errors
/// It cannot be started.
pub fn run(mut command: Command, limit: Duration) -> std::io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut pipe = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = &mut pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    });
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let bytes = reader.join().unwrap_or_default();
    Ok(Output { status, stdout: String::from_utf8_lossy(&bytes).into_owned() })
}

/// `SIGSEGV`, or `exit status 3`.
#[must_use]
pub fn how_it_ended(status: ExitStatus) -> String {
    let name = match status.signal() {
        Some(4) => "SIGILL",
        Some(6) => "SIGABRT",
        Some(7) => "SIGBUS",
        Some(8) => "SIGFPE",
        Some(9) => "SIGKILL",
        Some(11) => "SIGSEGV",
        Some(15) => "SIGTERM",
        Some(other) => return format!("signal {other}"),
        None => return format!("exit status {}", status.code().unwrap_or(-1)),
    };
    name.to_owned()
}
