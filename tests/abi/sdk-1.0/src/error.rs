//! What goes wrong while a plugin reads its configuration or describes its model.

use std::fmt;
use std::panic::Location;

/// Shorthand for results of SDK calls.
pub type Result<T, E = PluginError> = std::result::Result<T, E>;

/// An error with the author's source line.
///
/// Made with [`PluginError::new`] or by SDK calls; the core prints it with code, entry point and layer.
#[derive(Debug)]
pub struct PluginError {
    message: String,
    help: String,
    location: &'static Location<'static>,
    reported: bool,
}

impl PluginError {
    /// An error at the caller's line.
    #[track_caller]
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: String::new(), location: Location::caller(), reported: false }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// The host refused a call and already has the text.
    pub(crate) fn reported(location: &'static Location<'static>) -> Self {
        Self { message: "refused by the host".into(), help: String::new(), location, reported: true }
    }

    /// Whether the host already has the text.
    pub(crate) fn is_reported(&self) -> bool {
        self.reported
    }

    /// What happened.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it; may be empty.
    #[must_use]
    pub fn help(&self) -> &str {
        &self.help
    }

    /// Where in the plugin's source.
    #[must_use]
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PluginError {}
