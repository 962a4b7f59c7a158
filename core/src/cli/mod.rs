//! Command line: argument parsing and printing.
//!
//! The only place that prints, and the only one (with `main`) that uses `anyhow`. Loading a model is passed in as a
//! function, so the commands know the server's view of a model and nothing of how it is made.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod bench_step;
mod doctor;
mod logging;
mod plugins;
mod report;
mod run;
mod serve;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{ConfigError, EngineConfig, Resolved, Setting, resolve};
use crate::exec::ModelRunner;
use crate::server::ServedModel;

/// Loads the model that a configuration names.
pub type LoadModel = fn(&EngineConfig) -> anyhow::Result<ServedModel>;

/// Loads it without engine and tokenizer.
pub type LoadRunner = fn(&EngineConfig) -> anyhow::Result<ModelRunner>;

/// The `metrale` command.
#[derive(Debug, Parser)]
#[command(name = "metrale", version, about = "LLM inference engine in which a model family is a plugin")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over an OpenAI-compatible HTTP API.
    Serve(Box<serve::ServeArgs>),
    /// Talk to a model in the terminal, or continue one prompt.
    Run(Box<run::RunArgs>),
    /// Measure prefill and decode speed, beside what the memory allows.
    Bench(bench::BenchArgs),
    /// List plugins, inspect, verify and make them.
    Plugins(plugins::PluginsArgs),
    /// Print what this machine offers and what is broken.
    Doctor(doctor::DoctorArgs),
    /// Print the version.
    Version,
}

/// Runs the command line and returns the exit status.
pub fn main(args: impl Iterator<Item = OsString>, load: LoadModel, load_runner: LoadRunner) -> ExitCode {
    let args: Vec<_> = args.collect();
    let (command, settings) = match parse(&args) {
        Ok(parsed) => parsed,
        Err(ConfigError::Arguments(error)) => error.exit(),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    match dispatch(command, &settings, (load, load_runner)) {
        Ok(code) => code,
        Err(error) => {
            let text = report::one_line(&error);
            // Errors of plugins and weights carry a code of their own.
            let prefix = if text.starts_with("error[") { "" } else { "error: " };
            eprintln!("{prefix}{text}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[OsString]) -> Result<(Command, Vec<Setting>), ConfigError> {
    let Resolved { matches, settings } = resolve(&Cli::command(), args)?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok((cli.command, settings))
}

fn dispatch(
    command: Command,
    settings: &[Setting],
    (load, load_runner): (LoadModel, LoadRunner),
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => serve::execute(&args, settings, load),
        Command::Run(args) => run::execute(&args, settings, load),
        Command::Bench(args) => bench::execute(&args, settings, (load, load_runner)),
        Command::Plugins(args) => plugins::execute(&args),
        Command::Doctor(args) => Ok(doctor::execute(&args)),
        Command::Version => {
            println!("metrale {}", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
    }
}
