//! `metrale doctor`: what this machine offers, and what stands in the way. Loads no model and opens no plugin here.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use metrale_kernels::cpu::Isa;
use metrale_kernels::cuda;

use crate::plugin::probe::Prober;
use crate::plugin::{Candidate, Registry, Status};
use crate::weights::hub::Hub;

/// Flags of `metrale doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DoctorArgs {
    /// Directory to search for plugins; may be given several times.
    #[arg(long, value_name = "DIR")]
    plugins: Vec<PathBuf>,
}

pub(super) fn execute(args: &DoctorArgs) -> ExitCode {
    let mut report = Report::default();
    machine(&mut report);
    caches(&mut report);
    plugins(&args.plugins, &mut report);
    report.print()
}

/// What was found, in order.
#[derive(Default)]
struct Report {
    lines: Vec<(State, String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Fine,
    Notable,
    Broken,
}

impl Report {
    fn fact(&mut self, topic: &str, text: impl Into<String>) {
        self.lines.push((State::Fine, topic.to_owned(), text.into()));
    }

    fn note(&mut self, topic: &str, text: impl Into<String>) {
        self.lines.push((State::Notable, topic.to_owned(), text.into()));
    }

    fn broken(&mut self, topic: &str, text: impl Into<String>) {
        self.lines.push((State::Broken, topic.to_owned(), text.into()));
    }

    fn print(&self) -> ExitCode {
        for (state, topic, text) in &self.lines {
            let word = match state {
                State::Fine => "ok  ",
                State::Notable => "note",
                State::Broken => "FAIL",
            };
            println!("{word}  {topic:12} {}", indented(text));
        }
        let broken = self.lines.iter().filter(|(state, ..)| *state == State::Broken).count();
        if broken == 0 {
            println!("nothing is broken");
            return ExitCode::SUCCESS;
        }
        println!("{broken} broken");
        ExitCode::FAILURE
    }
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n                   ")
}

fn machine(report: &mut Report) {
    report.fact("metrale", env!("CARGO_PKG_VERSION"));
    let name = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    report.fact("processor", name);
    let levels: Vec<_> = Isa::ALL.iter().filter(|i| i.is_supported()).map(|i| i.name()).collect();
    let text = format!("{}; kernels use {}", levels.join(", "), Isa::detect().name());
    if Isa::detect() == Isa::Portable {
        report.note("vectors", text);
    } else {
        report.fact("vectors", text);
    }
    match std::thread::available_parallelism() {
        Ok(threads) => report.fact("threads", threads.to_string()),
        Err(error) => report.note("threads", format!("the system does not say: {error}")),
    }
    match (gibibytes("MemTotal"), gibibytes("MemAvailable")) {
        (Some(total), Some(available)) => {
            report.fact("memory", format!("{total:.1} GiB, {available:.1} GiB available"));
        }
        _ => report.note("memory", "the system does not say"),
    }
    gpus(report);
    match std::fs::read_to_string("/proc/driver/nvidia/version") {
        Ok(text) => report.fact(
            "GPU driver",
            text.lines().next().unwrap_or("NVIDIA").split_whitespace().collect::<Vec<_>>().join(" "),
        ),
        Err(_) => report.note("GPU driver", "no NVIDIA driver; models run on the CPU"),
    }
}

/// The GPU kernels of this build, and the GPUs that they run on.
fn gpus(report: &mut Report) {
    match cuda::image_archs() {
        Some(archs) => {
            let megabytes = cuda::image_bytes() as f64 / 1e6;
            report.fact("GPU kernels", format!("sm_{} ({megabytes:.1} MB)", archs.replace(',', ", sm_")));
        }
        None => report.note("GPU kernels", "none in this build: no nvcc was found when it was made"),
    }
    let devices = match cuda::devices() {
        Ok(devices) => devices,
        Err(error) => return report.note("GPU", format!("none: {error}; models run on the CPU")),
    };
    for info in devices {
        let (major, minor) = info.compute_capability;
        let gibibytes = info.memory_bytes as f64 / f64::from(1 << 30);
        let text = format!("cuda:{} {}, sm_{major}{minor}, {gibibytes:.1} GiB", info.ordinal, info.name);
        match cuda::usable(info.ordinal) {
            Ok(_) => report.fact("GPU", text),
            Err(error) => report.note("GPU", format!("{text}; not used: {error}")),
        }
    }
}

/// A size in /proc/meminfo, which counts in KiB.
fn gibibytes(key: &str) -> Option<f64> {
    let kibibytes: f64 = field("/proc/meminfo", key)?.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes / f64::from(1 << 20))
}

/// `key: value` of a file of the kernel.
fn field(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn caches(report: &mut Report) {
    match Hub::from_env(None) {
        Ok(hub) => {
            cache(report, "hub cache", hub.cache());
            let token = if hub.has_token() {
                "with a token"
            } else {
                "without a token: gated models cannot be downloaded"
            };
            let network =
                if hub.is_offline() { "offline: only the cache is used" } else { "downloads allowed" };
            report.fact("hub", format!("{}, {token}, {network}", hub.endpoint()));
        }
        Err(error) => report.broken("hub cache", error.to_string()),
    }
    match Prober::this_program() {
        Ok(prober) => match prober.cache() {
            Some(folder) => cache(report, "probe cache", folder),
            None => {
                report.note("probe cache", "none: the system names no cache folder, each start probes again");
            }
        },
        Err(error) => report.broken("probe cache", format!("this program cannot find itself: {error}")),
    }
}

fn cache(report: &mut Report, topic: &str, folder: &Path) {
    let existing = folder.ancestors().find(|f| f.exists()).unwrap_or(folder);
    let there = if existing == folder { "" } else { " (not there yet)" };
    match tempfile::tempfile_in(existing) {
        Ok(_) => report.fact(topic, format!("{}{there}", folder.display())),
        Err(error) => report.broken(
            topic,
            format!(
                "{} cannot be written: {error}\nhelp: change its owner, or set HF_HOME or XDG_CACHE_HOME",
                existing.display()
            ),
        ),
    }
}

fn plugins(folders: &[PathBuf], report: &mut Report) {
    let Ok(prober) = Prober::this_program() else { return };
    let registry = Registry::load_probed(folders, &prober);
    for problem in registry.problems() {
        report.broken("plugins", problem.to_string());
    }
    if registry.searched().is_empty() {
        report.note("plugins", "no folder is searched: there is none beside the program or in the user's data folder\nhelp: `--plugins DIR`, or METRALE_PLUGIN_PATH");
    }
    for folder in registry.searched() {
        let here: Vec<_> = registry.candidates().iter().filter(|c| c.search_folder() == folder).collect();
        report.fact("plugins", format!("{}: {} found", folder.display(), here.len()));
        for plugin in here {
            state(plugin, &prober, report);
        }
    }
    for warning in registry.warnings() {
        report.note("plugins", warning);
    }
}

/// Opens the plugin in a process of its own. A refusal is a decision; a failure is something broken.
fn state(plugin: &Candidate, prober: &Prober, report: &mut Report) {
    match plugin.probe(prober) {
        Ok(build) => {
            let types: Vec<_> = plugin
                .manifest()
                .map_or(&[][..], |m| &m.models)
                .iter()
                .map(|m| m.model_type.as_str())
                .collect();
            report.fact(plugin.name(), format!("ready: {} (SDK {})", types.join(", "), build.api_version));
        }
        Err(error) => match Status::of(error.clone()) {
            Status::Refused(_) => report.note(plugin.name(), format!("refused: {error}")),
            _ => report.broken(plugin.name(), error.to_string()),
        },
    }
}
