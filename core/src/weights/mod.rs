//! Files that hold weights: finding them (a directory, a GGUF file, the hub), mapping them, and reading their headers.
//!
//! [`hub::resolve`] turns what the user wrote into a path, [`ModelSource::open`] turns the path into headers and bytes.
//! What is stored in the bytes is `metrale_graph::checkpoint`'s business.

mod config_files;
mod directory;
mod error;
pub mod hub;
mod mmap;
mod open_attrs;
mod progress;
mod select;

pub use config_files::ConfigFiles;
pub use directory::ModelSource;
pub use error::WeightsError;
pub use mmap::{MappedFile, TensorBytes};
pub use open_attrs::open_attrs;
pub use progress::{Progress, Stage};
pub use select::{SelectError, WeightFiles};
