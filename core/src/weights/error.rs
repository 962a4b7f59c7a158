//! What can be wrong with a model directory or one of its files. Every variant names the path.

use std::io;
use std::path::{Path, PathBuf};

use metrale_graph::checkpoint::CheckpointError;

use super::select::SelectError;

/// A model that cannot be opened, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// "open", "read", "map", "list".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A GGUF file that describes a model and carries none: a vocabulary, or the first part of a split file.
    #[error("{} has no tensors: it is a vocabulary or a part of a split model; give a file with weights", path.display())]
    NoTensors {
        /// The file.
        path: PathBuf,
    },
    /// A path that is neither a directory nor a regular file.
    #[error("{} is no regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file of another kind where a GGUF file or a model directory is expected.
    #[error("{} is neither a model directory nor a .gguf file{hint}", path.display())]
    NotAModel {
        /// The path.
        path: PathBuf,
        /// What to give instead.
        hint: &'static str,
    },
    /// A directory without `config.json`.
    #[error(
        "{} has no config.json: give the directory that a Hugging Face model was saved to, or a .gguf file",
        path.display()
    )]
    NoConfig {
        /// The directory.
        path: PathBuf,
    },
    /// A JSON file that is too large to be what its name says.
    #[error("{} has {bytes} bytes, the limit is {limit}: this is not the file that its name says", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Largest size that is read.
        limit: u64,
    },
    /// A JSON file that does not parse, or whose top level is no object.
    #[error("{} is not a JSON object: {message}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        message: String,
    },
    /// A directory whose weight files cannot be used.
    #[error("{}: {source}", path.display())]
    Select {
        /// The directory.
        path: PathBuf,
        /// What is wrong with them.
        source: SelectError,
    },
    /// A damaged weight file.
    #[error("{}: {source}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: CheckpointError,
    },
    /// One part of a GGUF file that was split.
    #[error("{} is one of {parts} parts: join them with llama-gguf-split --merge", path.display())]
    SplitGguf {
        /// The file.
        path: PathBuf,
        /// Number of parts.
        parts: u64,
    },
    /// A tensor of another checkpoint.
    #[error("tensor `{tensor}` does not belong to {}", path.display())]
    ForeignTensor {
        /// Tensor name.
        tensor: String,
        /// The checkpoint.
        path: PathBuf,
    },
}

impl WeightsError {
    /// Adds the path to an error of the operating system; for `map_err`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// Adds the path to an error of a parser; for `map_err`.
    pub(super) fn checkpoint(path: &Path) -> impl FnOnce(CheckpointError) -> Self {
        move |source| Self::Checkpoint { path: path.to_owned(), source }
    }
}
