//! `metrale plugins`: what there is, what is wrong with it, and how to make one.

mod inspect;
mod lock;
mod new;
mod trace;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::plugin::discover::MANIFEST_FILE;
use crate::plugin::probe::Prober;
use crate::plugin::{Candidate, PluginError, Registry, probe};

/// Flags of `metrale plugins`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PluginsArgs {
    #[command(subcommand)]
    command: PluginsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum PluginsCommand {
    /// Print every plugin with its status. Opens no library.
    List {
        /// Directory to search for plugins; may be given several times.
        #[arg(long, value_name = "DIR")]
        plugins: Vec<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what a plugin is, and why it is refused if it is; opens it in a process of its own.
    Inspect(inspect::InspectArgs),
    /// Run the conformance kit on a plugin, in a process of its own.
    Verify(verify::VerifyArgs),
    /// Write a plugin crate to start from.
    New(new::NewArgs),
    /// Pin plugins: from then on only these files are opened.
    Lock(lock::LockArgs),
    /// Open one library and report what it says; runs in a process of its own.
    #[command(name = "__probe", hide = true)]
    Probe {
        /// The library.
        file: PathBuf,
    },
    /// Trace a model with one library; runs in a process of its own.
    #[command(name = "__trace", hide = true)]
    Trace(trace::TraceArgs),
    /// Run the conformance kit on one library; runs in a process of its own.
    #[command(name = "__verify", hide = true)]
    Kit(verify::KitArgs),
}

pub(super) fn execute(args: &PluginsArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        PluginsCommand::List { plugins, json } => {
            let registry = Registry::load(plugins);
            if *json {
                println!("{}", serde_json::to_string_pretty(&list_json(&registry))?);
            } else {
                println!("{}", registry.table());
            }
            for problem in registry.problems() {
                eprintln!("{problem}");
            }
            Ok(ExitCode::SUCCESS)
        }
        PluginsCommand::Inspect(args) => inspect::execute(args),
        PluginsCommand::Verify(args) => verify::execute(args),
        PluginsCommand::New(args) => new::execute(args),
        PluginsCommand::Lock(args) => lock::execute(args),
        PluginsCommand::Probe { file } => {
            println!("{}", probe::answer(&probe::examine(file)));
            Ok(ExitCode::SUCCESS)
        }
        PluginsCommand::Trace(args) => trace::trace(args),
        PluginsCommand::Kit(args) => {
            verify::run_kit(args);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list_json(registry: &Registry) -> Vec<Value> {
    let entry = |plugin: &Candidate| {
        json!({
            "name": plugin.name(),
            "folder": plugin.folder(),
            "manifest": plugin.manifest(),
            "pinned": plugin.is_pinned(),
            "status": plugin.status().word(),
            "problem": plugin.status().error().map(PluginError::explanation),
        })
    };
    registry.candidates().iter().map(entry).collect()
}

/// The plugin that a user means: its folder, or its name in the search folders.
fn find(plugin: &str, folders: &[PathBuf], prober: &Prober) -> Result<Candidate, PluginError> {
    let path = Path::new(plugin);
    // A library stands for the folder that it is in.
    let path = if path.is_file() { path.parent().unwrap_or(path) } else { path };
    let registry = if path.join(MANIFEST_FILE).exists() || plugin.contains('/') {
        Registry::of_folder(path, Some(prober))
    } else {
        let registry = Registry::load_probed(folders, prober);
        return registry.named(plugin).cloned();
    };
    registry
        .candidates()
        .first()
        .cloned()
        .ok_or_else(|| PluginError::UnknownName { name: plugin.to_owned(), known: Vec::new() })
}
