//! What the cache holds of a model.

use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo, RepoType};

use super::{Hub, HubError, ModelId};
use crate::weights::directory::read_index;
use crate::weights::select::{INDEX_FILE, SelectError, WeightFiles};

/// True for a full commit hash, which names the same files for ever.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

impl Hub {
    /// The cache directory of a repository.
    pub(super) fn repo_path(&self, id: &ModelId) -> PathBuf {
        self.cache.join(Repo::model(id.repo.clone()).folder_name())
    }

    /// The directory of the files of one commit; it may not exist.
    pub(super) fn snapshot_path(&self, id: &ModelId, commit: &str) -> PathBuf {
        self.repo_path(id).join("snapshots").join(commit)
    }

    /// The commit that the cache knows `revision` as.
    pub(super) fn cached_commit(&self, id: &ModelId, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = std::fs::read_to_string(self.repo_path(id).join("refs").join(revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Writes down that `revision` is `commit`, as the Python libraries do.
    pub(super) fn remember(&self, id: &ModelId, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) {
            return Ok(());
        }
        let repo = Repo::with_revision(id.repo.clone(), RepoType::Model, revision.to_owned());
        let written = Cache::new(self.cache.clone()).repo(repo).create_ref(commit);
        written.map_err(|source| HubError::Io { path: self.repo_path(id).join("refs"), source })
    }
}

/// Files that a snapshot lacks to be loadable; empty if it is complete.
pub(super) fn missing_files(snapshot: &Path, id: &ModelId) -> Vec<String> {
    let lacks = |name: &str| !snapshot.join(name).exists();
    if let Some(file) = &id.gguf {
        return if lacks(file) { vec![file.clone()] } else { vec![] };
    }
    let names: Vec<String> = std::fs::read_dir(snapshot)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !lacks(name))
        .collect();
    let mut missing = Vec::new();
    match WeightFiles::select(names.iter().map(String::as_str)) {
        Ok(WeightFiles::Gguf(_)) => return missing,
        Ok(WeightFiles::Safetensors(_)) => {}
        Ok(WeightFiles::Indexed) => match read_index(&snapshot.join(INDEX_FILE)) {
            Ok(index) => missing.extend(index.files().into_iter().filter(|f| lacks(f)).map(str::to_owned)),
            Err(_) => missing.push(INDEX_FILE.to_owned()),
        },
        Err(SelectError::MissingShards { files }) => missing.extend(files),
        Err(_) => missing.push("model.safetensors".to_owned()),
    }
    if lacks("config.json") {
        missing.insert(0, "config.json".to_owned());
    }
    missing
}

/// The path to open: the snapshot, or the GGUF file in it.
pub(super) fn model_path(snapshot: PathBuf, id: &ModelId) -> PathBuf {
    match &id.gguf {
        Some(file) => snapshot.join(file),
        None => snapshot,
    }
}
