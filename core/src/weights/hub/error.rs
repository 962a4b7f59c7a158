//! What can go wrong between a hub name and files on disk, each with what to do about it.

use std::io;
use std::path::PathBuf;

use crate::weights::{SelectError, WeightsError};

/// A model that could not be brought from the hub, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Neither a path nor a hub id.
    #[error(
        "`{model}` is no file or directory here, and no hub model either (org/name or org/name:file.gguf)"
    )]
    NotAModel {
        /// The argument as given.
        model: String,
    },
    /// A revision that cannot be one.
    #[error("`{revision}` is no branch, tag or commit")]
    Revision {
        /// The argument as given.
        revision: String,
    },
    /// Neither the environment nor the system says where the cache is.
    #[error("no home directory: set HF_HOME, or give --download-dir")]
    NoCache,
    /// Offline, and the cache does not hold the model.
    #[error(
        "offline, and {repo} ({revision}) is not complete in {}: missing {}; unset HF_HUB_OFFLINE, or copy the files there",
        cache.display(), missing.join(", ")
    )]
    Offline {
        /// `org/name`.
        repo: String,
        /// Revision that was asked for.
        revision: String,
        /// The cache directory.
        cache: PathBuf,
        /// Files that are missing.
        missing: Vec<String>,
    },
    /// 401 or 403.
    #[error("the hub refuses {repo} (HTTP {status}): it is private, gated or does not exist; {}", token_advice(*has_token))]
    Denied {
        /// `org/name`.
        repo: String,
        /// HTTP status.
        status: u16,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// 404 for the repository.
    #[error("the hub has no model {repo} with the revision {revision}: check the spelling of both")]
    NoSuchRepo {
        /// `org/name`.
        repo: String,
        /// Revision that was asked for.
        revision: String,
    },
    /// The repository has no such file.
    #[error("{repo} has no file {file}{}", alternatives(available))]
    NoSuchFile {
        /// `org/name`.
        repo: String,
        /// The file.
        file: String,
        /// GGUF files that the repository does have.
        available: Vec<String>,
    },
    /// The hub cannot be reached, or the connection broke.
    #[error(
        "cannot reach {endpoint}: {message}; check the network and HF_ENDPOINT, or set HF_HUB_OFFLINE=1 to use the cache only"
    )]
    Network {
        /// The hub.
        endpoint: String,
        /// What the connection said.
        message: String,
    },
    /// Another HTTP error.
    #[error("{endpoint} answered {what} with HTTP {status}")]
    Status {
        /// The hub.
        endpoint: String,
        /// What was asked for.
        what: String,
        /// HTTP status.
        status: u16,
    },
    /// An answer that is not what a hub says.
    #[error("{endpoint} gave an unusable answer for {what}: {message}")]
    Protocol {
        /// The hub.
        endpoint: String,
        /// What was asked for.
        what: String,
        /// What is wrong with the answer.
        message: String,
    },
    /// Not enough space for what is still to be downloaded.
    #[error(
        "not enough disk space in {}: {needed} bytes are needed, {available} are free; free some, or give another --download-dir",
        path.display()
    )]
    DiskFull {
        /// The cache directory.
        path: PathBuf,
        /// Bytes still to be downloaded.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// The disk filled up while downloading.
    #[error("the disk filled up while {file} was downloaded to {}: free some space and start again, the download resumes", path.display())]
    DiskFilledUp {
        /// The cache directory.
        path: PathBuf,
        /// The file.
        file: String,
    },
    /// A download of another size than the hub announced.
    #[error(
        "{file} has {found} bytes after the download, the hub says {expected}; start again to download it anew"
    )]
    Size {
        /// The file.
        file: String,
        /// Size that the hub gives.
        expected: u64,
        /// Size on disk.
        found: u64,
    },
    /// The cache cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The repository has no weights that can be used.
    #[error("{repo}: {source}{}", if matches!(source, SelectError::Ambiguous { .. }) { " (org/name:file.gguf)" } else { "" })]
    Select {
        /// `org/name`.
        repo: String,
        /// What is wrong with its files.
        source: SelectError,
    },
    /// A downloaded index that cannot be used.
    #[error(transparent)]
    Index(#[from] WeightsError),
}

fn token_advice(has_token: bool) -> &'static str {
    if has_token {
        "ask for access on its page, or use another token than the one in HF_TOKEN or the token file"
    } else {
        "set HF_TOKEN to a token that may read it"
    }
}

fn alternatives(available: &[String]) -> String {
    if available.is_empty() { String::new() } else { format!("; it has {}", available.join(", ")) }
}
