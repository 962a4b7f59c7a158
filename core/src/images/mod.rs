//! Images of requests: from bytes to the patches that a vision tower reads.

mod settings;

pub use settings::{ImageSettings, SettingsError};
