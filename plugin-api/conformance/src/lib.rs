//! The conformance kit: what every plugin must keep, checked without a device.
//!
//! | level | checks | needs |
//! |---|---|---|
//! | 0 | the root module says who built it; hostile configurations end in errors, never in a panic | the plugin |
//! | 1 | every entry point traces, twice to the same graph, and its weights resolve | a small `config.json` |
//! | 2 | decode = prefill, any chunking = whole, rows independent, restored = never drafted, in the reference interpreter | the same |
//!
//! `metrale plugins verify` runs it in a process of its own, after its checks of the library file. A plugin's own tests run
//! it with one line, in `tests/conformance.rs`:
//! ```ignore
//! metrale_conformance::suite!(metrale_acme::plugin_module());
//! ```
//! Test configurations are the files `configs/NAME.json` of the plugin's crate, one for each model type at least. A file
//! `configs/NAME.tensors.json` beside one lists the tensors of a real checkpoint of that configuration, `{"name": [shape]}`;
//! with it, the names that the plugin asks for are checked too.

#![forbid(unsafe_code)]

mod boundary;
mod check;
mod numbers;
mod random;
mod subject;
mod tracing;

use std::fmt;
use std::path::Path;

use metrale_plugin_api::abi::PluginModule_Ref;

pub use check::{Check, Event, Failure, Finding, Level, Outcome};
pub use subject::{CONFIGS, Subject, SubjectError, TestModel};
pub use tracing::Traced;

/// Runs every check up to a level, in order, and tells `observe` what starts and what came of it.
pub fn run(subject: &Subject, level: Level, observe: &mut dyn FnMut(Event<'_>)) {
    let mut recorder = check::Recorder::new(observe);
    boundary::check(subject, &mut recorder);
    if level == Level::Boundary {
        return;
    }
    let sound = tracing::check(subject, &mut recorder);
    if level == Level::Numbers {
        numbers::check(subject, &sound, &mut recorder);
    }
}

/// Runs one level for a plugin crate at `folder`; what [`suite!`] calls.
///
/// # Errors
/// The checks that failed.
pub fn check_crate(plugin: PluginModule_Ref, folder: &Path, level: Level) -> Result<(), Failures> {
    let subject = Subject::read(plugin, folder).map_err(|e| Failures(vec![e.to_string()]))?;
    let mut failures = Vec::new();
    run(&subject, level, &mut |event| {
        if let Event::Finished(check) = event
            && let Outcome::Failed(failure) = &check.outcome
        {
            failures.push(format!("{} ({}): {failure}", check.id, check.subject));
        }
    });
    if failures.is_empty() { Ok(()) } else { Err(Failures(failures)) }
}

/// The checks that failed, as text.
pub struct Failures(Vec<String>);

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// What a test that returns an error prints.
impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{self}")
    }
}

impl std::error::Error for Failures {}

/// One test per level for the plugin of this crate, given its `plugin_module()`.
#[macro_export]
macro_rules! suite {
    ($plugin:expr) => {
        #[test]
        fn level_0_boundary() -> Result<(), $crate::Failures> {
            $crate::check_crate($plugin, env!("CARGO_MANIFEST_DIR").as_ref(), $crate::Level::Boundary)
        }

        #[test]
        fn level_1_trace() -> Result<(), $crate::Failures> {
            $crate::check_crate($plugin, env!("CARGO_MANIFEST_DIR").as_ref(), $crate::Level::Trace)
        }

        #[test]
        fn level_2_numbers() -> Result<(), $crate::Failures> {
            $crate::check_crate($plugin, env!("CARGO_MANIFEST_DIR").as_ref(), $crate::Level::Numbers)
        }
    };
}
