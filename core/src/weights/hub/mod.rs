//! Models by their hub name: from the local cache, or downloaded into it.
//!
//! The cache is the standard one, shared with the Python libraries (`refs/`, `snapshots/`, `blobs/`), and files are used
//! where they lie in it. Only what the engine reads is downloaded: configuration, tokenizer and safetensors, or the one
//! GGUF file that was named. A snapshot is used when it is complete; a half-downloaded one is completed or refused.

mod download;
mod environment;
mod error;
mod snapshot;

pub use environment::Hub;
pub use error::HubError;

use std::path::{Path, PathBuf};

use super::select::is_gguf;

/// A model on the hub, as the user writes it: `org/name`, or `org/name:file.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    /// `org/name`.
    pub repo: String,
    /// The GGUF file to use; may lie in a folder of the repository.
    pub gguf: Option<String>,
}

impl ModelId {
    /// `None` for anything that is not a model id, paths among them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (repo, gguf) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (text, None),
        };
        let (org, name) = repo.split_once('/')?;
        let is_part = |part: &str| {
            let plain = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            plain
                && !part.is_empty()
                && !part.starts_with(['.', '-'])
                && !part.contains("..")
                && !part.contains("--")
        };
        let is_file = |file: &str| is_gguf(file) && is_repo_path(file);
        let valid = is_part(org) && is_part(name) && gguf.is_none_or(is_file);
        valid.then(|| Self { repo: repo.to_owned(), gguf: gguf.map(str::to_owned) })
    }
}

/// True for a relative path that stays inside a repository and needs no escaping in a URL.
fn is_repo_path(path: &str) -> bool {
    let safe = path.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+=@/".contains(&b));
    safe && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Turns a model argument into a local path: an existing path as it is, a hub id through the cache and, unless offline,
/// the network. `revision` is a branch, tag or commit, `main` if not given; `download_dir` replaces the standard cache.
pub fn resolve(
    model: &str,
    revision: Option<&str>,
    download_dir: Option<&Path>,
) -> Result<PathBuf, HubError> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_owned());
    }
    let Some(id) = ModelId::parse(model) else {
        return Err(HubError::NotAModel { model: model.to_owned() });
    };
    Hub::from_env(download_dir)?.fetch(&id, revision)
}

#[cfg(test)]
mod tests;
