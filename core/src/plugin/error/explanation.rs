//! The fields of an error and how they are printed.

use std::fmt;

use serde::Serialize;

/// The fields of an error, for `--json` and for printing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// `P0102`.
    pub code: &'static str,
    /// One sentence.
    pub what: String,
    /// Where, in the author's terms.
    pub place: Option<String>,
    /// Labelled facts: wanted and found.
    pub facts: Vec<(&'static str, String)>,
    /// Something worth knowing.
    pub note: Option<String>,
    /// An action.
    pub help: Option<String>,
}

impl Explanation {
    pub(super) fn new(code: &'static str, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), ..Self::default() }
    }

    pub(super) fn at(self, place: impl Into<String>) -> Self {
        let place = place.into();
        Self { place: (!place.is_empty()).then_some(place), ..self }
    }

    pub(super) fn fact(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.facts.push((label, value.into()));
        self
    }

    pub(super) fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    pub(super) fn help(self, help: impl Into<String>) -> Self {
        let help = help.into();
        Self { help: (!help.is_empty()).then_some(help), ..self }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.what)?;
        if let Some(place) = &self.place {
            write!(f, "\n  --> {place}")?;
        }
        let mut last = "";
        for (label, value) in &self.facts {
            write!(f, "\n   {:9} {value}", if *label == last { "" } else { label })?;
            last = label;
        }
        if let Some(note) = &self.note {
            write!(f, "\n   note: {note}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n   help: {help}")?;
        }
        Ok(())
    }
}
