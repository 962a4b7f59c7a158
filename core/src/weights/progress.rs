//! Progress bars for downloads and for loading, on stderr, and only when a person is looking at it.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str = "{prefix} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}";

/// What is taking its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Files come from the hub.
    Download,
    /// Weights go from files to the device.
    Load,
}

impl Stage {
    const fn label(self) -> &'static str {
        match self {
            Self::Download => "downloading",
            Self::Load => "loading weights",
        }
    }
}

/// A bar that counts bytes. Safe to advance from several threads; disappears when dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for `total_bytes`; invisible when stderr is no terminal.
    #[must_use]
    pub fn new(stage: Stage, total_bytes: u64) -> Self {
        let target =
            if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target).with_prefix(stage.label());
        // A test proves that the template parses.
        let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { bar: bar.with_style(style.progress_chars("=> ")) }
    }

    /// `bytes` more are done.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Bytes that are done.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.bar.position()
    }

    /// Corrects the count, when a part is done again or was done before.
    pub fn set_position(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    /// Shows which part is being worked on.
    pub fn set_message(&self, message: &str) {
        self.bar.set_message(message.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid() {
        ProgressStyle::with_template(TEMPLATE).unwrap();
    }

    #[test]
    fn bytes_add_up_without_a_terminal() {
        let progress = Progress::new(Stage::Load, 100);
        progress.advance(30);
        progress.advance(30);
        progress.set_message("model.safetensors");
        assert_eq!(progress.position(), 60);
        progress.set_position(10);
        assert_eq!(progress.position(), 10);
    }
}
