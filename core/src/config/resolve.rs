//! Brings command line, environment and file together: command line wins over environment over file over default.
//!
//! The file's values become the defaults of the command's flags, so every source passes through one parser.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::file::{self, FileError, FileValues, Shape};

/// Where an effective value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag.
    CommandLine,
    /// This environment variable.
    Environment(String),
    /// The configuration file.
    File,
    /// Built in.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("command line"),
            Self::Environment(variable) => f.write_str(variable),
            Self::File => f.write_str("file"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One line of the effective configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Flag name without dashes in front; `model` for the positional argument.
    pub name: String,
    /// Value as text; secrets are masked.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line, an environment variable or a value of the file is wrong; also `--help` and `--version`.
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    /// A value of the configuration file is wrong.
    #[error("{path}: {source}")]
    FileValue {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: clap::Error,
    },
    /// The configuration file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What was asked for.
#[derive(Debug)]
pub struct Resolved {
    /// Matches of the whole command; feed them to `FromArgMatches`.
    pub matches: ArgMatches,
    /// The effective configuration of the subcommand, in the order of its help; empty for commands without `--config`.
    pub settings: Vec<Setting>,
}

/// Parses `args` (program name first). `command` has subcommands; those with a `--config` flag read it.
///
/// A key of the file that only another subcommand knows is accepted: one file serves all of them.
pub fn resolve(command: &Command, args: &[OsString]) -> Result<Resolved, ConfigError> {
    let Some((name, path)) = config_file(command, args) else {
        let matches = command.clone().try_get_matches_from(args)?;
        let settings = settings(command, &matches, &FileValues::new());
        return Ok(Resolved { matches, settings });
    };
    let values = file::read(&path, &known_flags(command))?;
    let command = command.clone().mut_subcommand(&name, |sub| with_defaults(sub, &values));
    let matches = command.clone().try_get_matches_from(args).map_err(|source| {
        if blames_file(&source, &values) {
            ConfigError::FileValue { path, source }
        } else {
            ConfigError::Arguments(source)
        }
    })?;
    let settings = settings(&command, &matches, &values);
    Ok(Resolved { matches, settings })
}

/// The subcommand and its `--config`, if both are there. Errors are left to the full parse.
fn config_file(command: &Command, args: &[OsString]) -> Option<(String, PathBuf)> {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let mut lenient = command.clone();
    for name in names {
        lenient = lenient.mut_subcommand(name, |sub| sub.mut_args(|arg| arg.required(false)));
    }
    let matches = lenient.try_get_matches_from(args).ok()?;
    let (name, sub) = matches.subcommand()?;
    let path = sub.try_get_one::<PathBuf>("config").ok()??;
    Some((name.to_owned(), path.clone()))
}

/// The flags of every subcommand that takes `--config`.
fn known_flags(command: &Command) -> BTreeMap<String, Shape> {
    command
        .get_subcommands()
        .filter(|sub| sub.get_arguments().any(|arg| arg.get_id() == "config"))
        .flat_map(Command::get_arguments)
        .filter(|arg| is_setting(arg) && arg.get_id() != "config")
        .map(|arg| (flag_name(arg), shape(arg)))
        .collect()
}

/// Flags with an environment twin are settings; the rest are switches of one invocation.
fn is_setting(arg: &Arg) -> bool {
    arg.get_env().is_some()
}

fn flag_name(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().to_owned(), str::to_owned)
}

fn shape(arg: &Arg) -> Shape {
    let is_json =
        arg.get_value_names().is_some_and(|names| names.first().is_some_and(|name| name.as_str() == "JSON"));
    match arg.get_action() {
        ArgAction::Append if arg.get_id() == "plugin" => Shape::Pairs,
        ArgAction::Append => Shape::List,
        _ if is_json => Shape::Json,
        _ => Shape::Single,
    }
}

fn with_defaults(command: Command, values: &FileValues) -> Command {
    command.mut_args(|arg| match values.get(&flag_name(&arg)) {
        Some(values) if is_setting(&arg) => arg.required(false).default_values(values.clone()),
        _ => arg,
    })
}

/// Whether the value that an error quotes stands in the file.
fn blames_file(error: &clap::Error, values: &FileValues) -> bool {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (Some(arg), Some(value)) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue)) else {
        return false;
    };
    let flag = arg.trim_start_matches('-').split([' ', '<']).next().unwrap_or_default().to_owned();
    values.get(&flag).is_some_and(|given| given.contains(&value))
}

fn settings(command: &Command, matches: &ArgMatches, values: &FileValues) -> Vec<Setting> {
    let Some((name, matches)) = matches.subcommand() else { return Vec::new() };
    let Some(command) = command.find_subcommand(name) else { return Vec::new() };
    command.get_arguments().filter(|arg| is_setting(arg)).map(|arg| setting(arg, matches, values)).collect()
}

fn setting(arg: &Arg, matches: &ArgMatches, values: &FileValues) -> Setting {
    let id = arg.get_id().as_str();
    let name = flag_name(arg);
    if negated(id, matches) {
        return Setting { name, value: "false".to_owned(), origin: Origin::CommandLine };
    }
    let origin = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => Origin::CommandLine,
        Some(ValueSource::EnvVariable) => {
            Origin::Environment(arg.get_env().unwrap_or_default().to_string_lossy().into_owned())
        }
        _ if values.contains_key(&name) => Origin::File,
        _ => Origin::Default,
    };
    let raw: Vec<_> =
        matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned()).collect();
    let value = match raw.as_slice() {
        [] if matches!(arg.get_action(), ArgAction::SetTrue) => matches.get_flag(id).to_string(),
        [] => "-".to_owned(),
        _ if id == "api_key" => "***".to_owned(),
        _ => raw.join(","),
    };
    Setting { name, value, origin }
}

/// Whether `--no-FLAG` was given for this flag.
fn negated(id: &str, matches: &ArgMatches) -> bool {
    matches.try_get_one::<bool>(&format!("no_{id}")).ok().flatten().copied().unwrap_or(false)
}
