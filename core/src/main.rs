//! The `metrale` program.

use std::process::ExitCode;

use metrale_core::config::EngineConfig;
use metrale_core::server::ServedModel;

fn main() -> ExitCode {
    metrale_core::cli::main(std::env::args_os(), load)
}

fn load(config: &EngineConfig) -> anyhow::Result<ServedModel> {
    anyhow::bail!("{} cannot be loaded: this build has no model factory", config.model)
}
