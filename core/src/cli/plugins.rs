//! `metrale plugins`: what there is, and why something is not ready.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use crate::plugin::{Registry, probe};

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
    },
    /// Open one library and report what it says; runs in a process of its own.
    #[command(name = "__probe", hide = true)]
    Probe {
        /// The library.
        file: PathBuf,
    },
}

pub(super) fn execute(args: &PluginsArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        PluginsCommand::List { plugins } => {
            let registry = Registry::load(plugins);
            println!("{}", registry.table());
            for problem in registry.problems() {
                eprintln!("{problem}");
            }
            Ok(ExitCode::SUCCESS)
        }
        PluginsCommand::Probe { file } => {
            println!("{}", probe::answer(&probe::examine(file)));
            Ok(ExitCode::SUCCESS)
        }
    }
}
