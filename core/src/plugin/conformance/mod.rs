//! `metrale plugins verify`: the checks of a plugin's files here, then the conformance kit in a process of its own.
//!
//! The child prints a line when a check begins and one when it ends, so a plugin that crashes or hangs is the result of
//! the check that it did it in.

mod child;
mod package;

use std::path::PathBuf;

use metrale_conformance::Level;
use serde::{Deserialize, Serialize};

use super::Candidate;
use super::probe::Prober;
use super::registry::Registry;

pub use child::{CHILD_ARGS, run_in_this_process};

/// What came of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Stable name of the check: `trace.repeatable`.
    pub id: String,
    /// `plugin`, or the test model.
    pub subject: String,
    /// How it ended.
    pub verdict: Verdict,
    /// What was found; the whole error for a failure.
    pub text: String,
}

impl Line {
    /// The conformance level that the check belongs to.
    #[must_use]
    pub fn level(&self) -> u8 {
        match self.id.split('.').next() {
            Some("trace") => 1,
            Some("numbers") => 2,
            _ => 0,
        }
    }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It has begun.
    Started,
    /// It holds.
    Passed,
    /// It does not apply.
    Skipped,
    /// It does not hold.
    Failed,
}

/// What to check a plugin with.
#[derive(Clone, Debug)]
pub struct Options {
    /// How far to go.
    pub level: Level,
    /// A real model, besides the plugin's test configurations.
    pub model: Option<PathBuf>,
}

/// Checks a plugin and tells `report` of every check as it ends. `others` are the plugins that it will be beside.
pub fn verify(
    plugin: &Candidate,
    others: &Registry,
    options: &Options,
    prober: &Prober,
    report: &mut dyn FnMut(Line),
) {
    let sound = package::check(plugin, others, prober, report);
    let Some(library) = plugin.library().filter(|_| sound) else { return };
    child::run(plugin, library, options, prober, report);
}
