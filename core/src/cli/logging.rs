//! Log output: to standard error, filtered by `RUST_LOG`, for people or for machines.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{EngineConfig, LogFormat, Setting};

/// Sends log lines of `level` and above to standard error.
pub(super) fn init(format: LogFormat, level: LevelFilter) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let installed = match format {
        LogFormat::Text => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    installed.map_err(|error| anyhow::anyhow!("logging could not be started: {error}"))
}

/// Logs every setting with its origin, and what about them deserves a warning.
pub(super) fn report(config: &EngineConfig, settings: &[Setting]) {
    for Setting { name, value, origin } in settings {
        tracing::info!("{name} = {value}  ({origin})");
    }
    if config.trust_remote_code {
        tracing::warn!("--trust-remote-code has no effect: metrale never runs code from a checkpoint");
    }
}
