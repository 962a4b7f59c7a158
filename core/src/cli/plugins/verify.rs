//! `metrale plugins verify`: one line per check, and a failure that is not zero.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use metrale_conformance::{Level, TestModel};
use metrale_reference::Checkpoint;

use crate::cli::report;
use crate::plugin::conformance::{Line, Options, Verdict, run_in_this_process, verify};
use crate::plugin::discover::SearchPath;
use crate::plugin::probe::Prober;
use crate::plugin::{PluginError, Registry};
use crate::weights::{ModelSource, open_attrs};

/// Flags of `metrale plugins verify`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct VerifyArgs {
    /// Folder of the plugin (a crate whose library is in `target/release` will do), or its name.
    #[arg(value_name = "PATH|NAME")]
    plugin: String,
    /// 0: files, identity, panics; 1: traces and weights; 2: numbers in the reference interpreter.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=2))]
    level: u8,
    /// A real model to try it on, besides its own test configurations.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Directory of plugins that it will be beside; may be given several times.
    #[arg(long, value_name = "DIR")]
    plugins: Vec<PathBuf>,
    /// Print the checks as a JSON list.
    #[arg(long)]
    json: bool,
}

/// Arguments of the child process.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct KitArgs {
    library: PathBuf,
    folder: PathBuf,
    level: u8,
    model: Option<PathBuf>,
}

fn level(number: u8) -> Level {
    match number {
        0 => Level::Boundary,
        1 => Level::Trace,
        _ => Level::Numbers,
    }
}

/// Runs in the child.
pub(super) fn run_kit(args: &KitArgs) {
    let model = args.model.as_deref().map(read_model).transpose().map_err(|error| report::one_line(&error));
    let print = &mut |line: &str| println!("{line}");
    run_in_this_process(&args.library, &args.folder, level(args.level), model, print);
}

/// Maps the files; reads them whole only if the interpreter can hold them.
fn read_model(path: &Path) -> anyhow::Result<TestModel> {
    let source = ModelSource::open(path)?;
    let (attrs, headers) = (open_attrs(&source, None), source.headers().clone());
    Ok(TestModel::of_checkpoint(source.path(), attrs, headers, Checkpoint::read)?)
}

pub(super) fn execute(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let prober = Prober::this_program()?;
    let plugin = match super::find(&args.plugin, &args.plugins, &prober) {
        Ok(plugin) => plugin,
        Err(error) => return Ok(refuse(&error)),
    };
    let others = if args.plugins.is_empty() {
        Registry::default()
    } else {
        Registry::search(&SearchPath::of(&args.plugins), None)
    };
    let options = Options { level: level(args.level), model: args.model.clone() };
    let version = plugin.manifest().map_or("", |m| &m.plugin.version);
    let mut printer = Printer { json: args.json, lines: Vec::new() };
    if !args.json {
        println!("{} {version}   {}", plugin.name(), plugin.folder().display());
    }
    verify(&plugin, &others, &options, &prober, &mut |line| printer.print(line));
    Ok(printer.finish())
}

/// An error in the words that every other command would use.
pub(super) fn refuse(error: &PluginError) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

struct Printer {
    json: bool,
    lines: Vec<Line>,
}

impl Printer {
    fn print(&mut self, line: Line) {
        if !self.json {
            if self.lines.last().map(Line::level) != Some(line.level()) {
                println!("level {}", line.level());
            }
            let word = match line.verdict {
                Verdict::Started | Verdict::Passed => "ok  ",
                Verdict::Skipped => "skip",
                Verdict::Failed => "FAIL",
            };
            let text = match line.verdict {
                Verdict::Failed => format!("\n    {}", line.text.replace('\n', "\n    ")),
                _ => line.text.clone(),
            };
            println!("  {word}  {:26} {:24} {text}", line.id, line.subject);
        }
        self.lines.push(line);
    }

    fn finish(self) -> ExitCode {
        let count = |verdict: Verdict| self.lines.iter().filter(|l| l.verdict == verdict).count();
        let failed = count(Verdict::Failed);
        if self.json {
            println!("{}", serde_json::to_string_pretty(&self.lines).unwrap_or_default());
        } else {
            let (passed, skipped) = (count(Verdict::Passed), count(Verdict::Skipped));
            println!("{passed} passed, {skipped} skipped, {failed} failed");
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
