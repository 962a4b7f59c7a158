//! What became of each plugin folder, and the table of them.

use std::fmt;

use super::PluginError;
use super::registry::Registry;

/// Exactly one of these for every plugin folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Can be opened, as far as is known without opening it.
    Ready,
    /// Whole, and not for this core or not trusted.
    Refused(PluginError),
    /// Broken.
    Failed(PluginError),
}

impl Status {
    /// Sorts an error into refused and failed.
    #[must_use]
    pub fn of(error: PluginError) -> Self {
        match error {
            PluginError::MissingOps { .. }
            | PluginError::AbiMajor { .. }
            | PluginError::SameName { .. }
            | PluginError::SameFile { .. }
            | PluginError::WorldWritable { .. }
            | PluginError::HashMismatch { .. }
            | PluginError::NotLocked { .. }
            | PluginError::Lock { .. } => Self::Refused(error),
            _ => Self::Failed(error),
        }
    }

    /// `ready`, `refused` or `failed`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
        }
    }

    /// Why it is not ready.
    #[must_use]
    pub fn error(&self) -> Option<&PluginError> {
        match self {
            Self::Ready => None,
            Self::Refused(error) | Self::Failed(error) => Some(error),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self.error() {
            Some(error) => write!(f, ": {}", error.reason()),
            None => Ok(()),
        }
    }
}

const HEADINGS: [&str; 6] = ["NAME", "VERSION", "API", "MODEL TYPES", "TRUST", "STATUS"];

/// One line per plugin, then the counts.
pub(super) fn table(registry: &Registry) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    for plugin in registry.candidates() {
        let manifest = plugin.manifest();
        let field = |f: &dyn Fn(&metrale_plugin_api::manifest::Manifest) -> String| {
            manifest.map_or_else(|| "-".to_owned(), f)
        };
        rows.push([
            plugin.name().to_owned(),
            field(&|m| m.plugin.version.clone()),
            field(&|m| m.api.plugin_api.clone()),
            field(&|m| m.models.iter().map(|m| m.model_type.as_str()).collect::<Vec<_>>().join(", ")),
            if plugin.is_pinned() { "pinned" } else { "-" }.to_owned(),
            plugin.status().to_string().replace('\n', " "),
        ]);
    }
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..HEADINGS.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, &w)| format!("{cell:w$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text + &counts(registry.candidates().iter().map(super::Candidate::status))
}

/// `4 ready, 1 refused, 1 failed`.
pub(super) fn counts<'a>(statuses: impl Iterator<Item = &'a Status>) -> String {
    let words: Vec<_> = statuses.map(Status::word).collect();
    let count = |word: &str| words.iter().filter(|w| **w == word).count();
    format!("{} ready, {} refused, {} failed", count("ready"), count("refused"), count("failed"))
}
