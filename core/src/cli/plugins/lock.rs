//! `metrale plugins lock`: writes plugins.lock, which pins libraries by hash.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use crate::plugin::trust::{Lock, Pin, sha256_of};
use crate::plugin::{Candidate, PluginError, Registry, Status};

/// Flags of `metrale plugins lock`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LockArgs {
    /// Plugins to pin anew; the others stay as they are. Without names, every usable plugin is pinned and no other stays.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Directory to search for plugins; may be given several times.
    #[arg(long, value_name = "DIR")]
    plugins: Vec<PathBuf>,
}

pub(super) fn execute(args: &LockArgs) -> anyhow::Result<ExitCode> {
    let registry = Registry::load(&args.plugins);
    for name in &args.names {
        if let Err(error) = registry.named(name) {
            return Ok(super::verify::refuse(&error));
        }
    }
    let folders: BTreeSet<&Path> = registry.candidates().iter().map(Candidate::search_folder).collect();
    for folder in folders {
        let here: Vec<_> = registry
            .candidates()
            .iter()
            .filter(|c| c.search_folder() == folder)
            .filter(|c| args.names.is_empty() || args.names.iter().any(|n| n == c.name()))
            .collect();
        if here.is_empty() {
            continue;
        }
        let mut lock =
            if args.names.is_empty() { Lock::default() } else { Lock::read(folder)?.unwrap_or_default() };
        for plugin in here {
            pin(&mut lock, plugin)?;
        }
        println!("{}", lock.write(folder)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn pin(lock: &mut Lock, plugin: &Candidate) -> anyhow::Result<()> {
    if let Some(error) = plugin.status().error().filter(|_| !is_about_the_lock(plugin.status())) {
        println!("  {}: left out: {}", plugin.name(), error.reason());
        return Ok(());
    }
    let (Some(library), Some(manifest)) = (plugin.library(), plugin.manifest()) else { return Ok(()) };
    let sha256 = sha256_of(library).with_context(|| library.display().to_string())?;
    println!("  {} {} {sha256}", plugin.name(), manifest.plugin.version);
    lock.plugins.insert(plugin.name().to_owned(), Pin { version: manifest.plugin.version.clone(), sha256 });
    Ok(())
}

/// Whether the plugin is refused for nothing but what the old lock says.
fn is_about_the_lock(status: &Status) -> bool {
    let by_lock = |file: &Path| file.file_name().is_some_and(|n| n == crate::plugin::trust::LOCK_FILE);
    match status.error() {
        Some(PluginError::NotLocked { .. } | PluginError::Lock { .. }) => true,
        Some(PluginError::HashMismatch { by, .. }) => by_lock(by),
        _ => false,
    }
}
