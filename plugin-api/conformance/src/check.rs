//! A check, what came of it, and the words for it.

use std::fmt;

use metrale_graph::PluginFailure;
use metrale_graph::resolve::Report;
use metrale_reference::ModelError;
use serde::Serialize;

/// How far the checks go. Each level includes those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// 0: identity, and no panic crosses the boundary.
    Boundary,
    /// 1: entry points trace and their weights resolve.
    Trace,
    /// 2: the reference interpreter computes the same in every way of running the model.
    Numbers,
}

/// One check of one subject.
#[derive(Debug)]
pub struct Check {
    /// Stable name, `trace.repeatable`.
    pub id: &'static str,
    /// `plugin`, or the test model.
    pub subject: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a check.
#[derive(Debug)]
pub enum Outcome {
    /// It holds, as far as the text says.
    Passed(String),
    /// It does not apply.
    Skipped(String),
    /// It does not hold.
    Failed(Failure),
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A check begins; if the process dies now, this one did it.
    Started {
        /// As [`Check::id`].
        id: &'static str,
        /// As [`Check::subject`].
        subject: &'a str,
    },
    /// A check has ended.
    Finished(&'a Check),
}

/// Why a check failed.
#[derive(Debug)]
pub enum Failure {
    /// A call into the plugin ended with an error.
    Call {
        /// Entry point; none while the model was opened.
        entry: Option<String>,
        /// What the plugin or the host said.
        failure: Box<PluginFailure>,
    },
    /// The graph's weights do not fit the checkpoint.
    Weights(Report),
    /// The interpreter could not run the model.
    Run(ModelError),
    /// A promise that does not hold.
    Broken(Finding),
}

/// A promise that does not hold, in the author's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// One sentence.
    pub what: String,
    /// Source line or file; may be empty.
    pub place: String,
    /// What should be; may be empty.
    pub expected: String,
    /// What is; may be empty.
    pub found: String,
    /// What to do.
    pub help: String,
}

impl Finding {
    pub(crate) fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: help.into(), ..Self::default() }
    }

    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        Self { place: place.to_string(), ..self }
    }

    pub(crate) fn wanted(self, expected: impl fmt::Display, found: impl fmt::Display) -> Self {
        Self { expected: expected.to_string(), found: found.to_string(), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.place.is_empty() {
            write!(f, "\n  --> {}", self.place)?;
        }
        for (label, text) in [("expected ", &self.expected), ("found    ", &self.found)] {
            if !text.is_empty() {
                write!(f, "\n   {label} {text}")?;
            }
        }
        write!(f, "\n   help: {}", self.help)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { entry: Some(entry), failure } => write!(f, "entry `{entry}`: {failure}"),
            Self::Call { entry: None, failure } => write!(f, "open: {failure}"),
            Self::Weights(report) => report.fmt(f),
            Self::Run(error) => error.fmt(f),
            Self::Broken(finding) => finding.fmt(f),
        }
    }
}

impl From<Finding> for Failure {
    fn from(finding: Finding) -> Self {
        Self::Broken(finding)
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Weights(report) => Self::Weights(report),
            other => Self::Run(other),
        }
    }
}

/// A check that did not fail.
pub(crate) enum Done {
    Passed(String),
    Skipped(String),
}

pub(crate) fn passed(text: impl Into<String>) -> Result<Done, Failure> {
    Ok(Done::Passed(text.into()))
}

pub(crate) fn skipped(why: impl Into<String>) -> Result<Done, Failure> {
    Ok(Done::Skipped(why.into()))
}

/// Runs checks and reports them.
pub(crate) struct Recorder<'a> {
    observe: &'a mut dyn FnMut(Event<'_>),
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(observe: &'a mut dyn FnMut(Event<'_>)) -> Self {
        Self { observe }
    }

    /// Runs one check; tells whether it did not fail.
    pub(crate) fn check(
        &mut self,
        id: &'static str,
        subject: &str,
        f: impl FnOnce() -> Result<Done, Failure>,
    ) -> bool {
        (self.observe)(Event::Started { id, subject });
        let outcome = match f() {
            Ok(Done::Passed(text)) => Outcome::Passed(text),
            Ok(Done::Skipped(why)) => Outcome::Skipped(why),
            Err(failure) => Outcome::Failed(failure),
        };
        let good = !matches!(outcome, Outcome::Failed(_));
        (self.observe)(Event::Finished(&Check { id, subject: subject.to_owned(), outcome }));
        good
    }
}
