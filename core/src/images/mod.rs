//! Images of requests: where they come from, and how they become the patches that a vision tower reads.

mod processor;
mod settings;
mod source;

pub use processor::{ImageProcessor, ProcessedImage};
pub use settings::{ImageSettings, SettingsError};
pub use source::ImagePolicy;

/// An image that cannot be used, in words for the client who sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ImageError(pub String);
