//! Bringing a snapshot up to date: one question for the file list, then whatever the cache lacks.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use serde::Deserialize;

use super::snapshot::{is_commit, missing_files, model_path};
use super::{Hub, HubError, ModelId, is_repo_path};
use crate::weights::directory::read_index;
use crate::weights::progress::{Progress, Stage};
use crate::weights::select::{INDEX_FILE, WeightFiles, is_gguf};

/// Attempts for one file when the connection breaks; each resumes where the last one ended.
const ATTEMPTS: u32 = 5;
/// Pause before the second attempt; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Space that is left free besides the files themselves.
const SPARE_BYTES: u64 = 64 << 20;

/// What the hub says about one revision.
#[derive(Deserialize)]
struct RepoInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: Option<String>,
}

impl Sibling {
    /// Name of the file's content in the cache; `None` if the hub does not give one that can be a file name.
    fn blob(&self) -> Option<&str> {
        let large = self.lfs.as_ref().and_then(|lfs| lfs.sha256.as_deref());
        large.or(self.blob_id.as_deref()).filter(|id| is_blob_name(id))
    }
}

fn is_blob_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

impl Hub {
    /// The local path of a model: from the cache if the hub has nothing newer or cannot be asked, downloaded otherwise.
    ///
    /// A complete snapshot of a commit needs no network at all. When the hub fails and the cache is complete, the cache
    /// is used and a warning says so.
    pub fn fetch(&self, id: &ModelId, revision: Option<&str>) -> Result<PathBuf, HubError> {
        let revision = revision.unwrap_or("main");
        if !is_repo_path(revision) {
            return Err(HubError::Revision { revision: revision.to_owned() });
        }
        let cached = self.cached_commit(id, revision).map(|commit| self.snapshot_path(id, &commit));
        let missing = match &cached {
            Some(snapshot) => missing_files(snapshot, id),
            None => vec!["every file".to_owned()],
        };
        let complete = cached.filter(|_| missing.is_empty());
        match (complete, self.offline) {
            (Some(snapshot), offline) if offline || is_commit(revision) => Ok(model_path(snapshot, id)),
            (None, true) => Err(HubError::Offline {
                repo: id.repo.clone(),
                revision: revision.to_owned(),
                cache: self.cache.clone(),
                missing,
            }),
            (complete, _) => match (self.download(id, revision), complete) {
                (Err(error), Some(snapshot)) if is_of_the_hub(&error) => {
                    tracing::warn!(%error, snapshot = %snapshot.display(), "using the cached model, it may be outdated");
                    Ok(model_path(snapshot, id))
                }
                (result, _) => result,
            },
        }
    }

    fn download(&self, id: &ModelId, revision: &str) -> Result<PathBuf, HubError> {
        let api = self.api()?;
        let info = self.info(&api, id, revision)?;
        // Files are asked for by commit, so that all of them come from the same one.
        let repo = Repo::with_revision(id.repo.clone(), RepoType::Model, info.sha.clone());
        let download = Download {
            hub: self,
            id,
            repo: api.repo(repo),
            api,
            blobs: self.repo_path(id).join("blobs"),
            snapshot: self.snapshot_path(id, &info.sha),
            files: info.siblings.iter().map(|s| (s.rfilename.as_str(), s)).collect(),
        };
        if self.cached_commit(id, revision).is_none() {
            self.remember(id, revision, &info.sha)?;
        }
        match &id.gguf {
            Some(file) => download.gguf(file)?,
            None => download.directory()?,
        }
        self.remember(id, revision, &info.sha)?;
        Ok(model_path(download.snapshot, id))
    }

    fn api(&self) -> Result<Api, HubError> {
        ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_progress(false)
            .with_user_agent("metrale", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|e| self.api_error(e, "the connection"))
    }

    fn info(&self, api: &Api, id: &ModelId, revision: &str) -> Result<RepoInfo, HubError> {
        let what = format!("{} ({revision})", id.repo);
        let repo = Repo::with_revision(id.repo.clone(), RepoType::Model, revision.to_owned());
        let mut response = match api.repo(repo).info_request().query("blobs", "true").call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(status @ (401 | 403))) => return Err(self.denied(id, status)),
            Err(ureq::Error::StatusCode(404)) => {
                return Err(HubError::NoSuchRepo { repo: id.repo.clone(), revision: revision.to_owned() });
            }
            Err(error) => return Err(self.api_error(Box::new(error).into(), &what)),
        };
        let text =
            response.body_mut().read_to_string().map_err(|e| self.api_error(Box::new(e).into(), &what))?;
        let unusable =
            |message| HubError::Protocol { endpoint: self.endpoint.clone(), what: what.clone(), message };
        let mut info: RepoInfo = serde_json::from_str(&text).map_err(|e| unusable(e.to_string()))?;
        if !is_commit(&info.sha) {
            return Err(unusable(format!("`{}` is no commit", info.sha)));
        }
        // Names become paths: what would leave the snapshot is not there.
        info.siblings.retain(|s| is_repo_path(&s.rfilename));
        Ok(info)
    }

    fn denied(&self, id: &ModelId, status: u16) -> HubError {
        HubError::Denied { repo: id.repo.clone(), status, has_token: self.token.is_some() }
    }

    /// Sorts the errors of the hub client into those of the network, of the hub and of the disk.
    pub(super) fn api_error(&self, error: ApiError, what: &str) -> HubError {
        let endpoint = self.endpoint.clone();
        let what = what.to_owned();
        match error {
            ApiError::RequestError(error) => match *error {
                ureq::Error::StatusCode(status) => HubError::Status { endpoint, what, status },
                ureq::Error::Http(_) | ureq::Error::BadUri(_) | ureq::Error::Protocol(_) => {
                    HubError::Protocol { endpoint, what, message: error.to_string() }
                }
                _ => HubError::Network { endpoint, message: error.to_string() },
            },
            ApiError::IoError(source) => match source.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                    HubError::DiskFilledUp { path: self.cache.clone(), file: what }
                }
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound => {
                    HubError::Io { path: self.cache.clone(), source }
                }
                // Reading the answer and writing the file fail in one call; what is left is the connection.
                _ => HubError::Network { endpoint, message: source.to_string() },
            },
            ApiError::LockAcquisition(path) => {
                let source = std::io::Error::other("another process is downloading this file");
                HubError::Io { path, source }
            }
            error => HubError::Protocol { endpoint, what, message: error.to_string() },
        }
    }
}

/// One revision of one repository on its way into the cache.
struct Download<'a> {
    hub: &'a Hub,
    id: &'a ModelId,
    api: Api,
    repo: ApiRepo,
    blobs: PathBuf,
    snapshot: PathBuf,
    files: BTreeMap<&'a str, &'a Sibling>,
}

impl Download<'_> {
    fn gguf(&self, file: &str) -> Result<(), HubError> {
        if self.files.contains_key(file) {
            return self.get(&[file]);
        }
        let available = self.files.keys().filter(|n| is_gguf(n)).map(|&n| n.to_owned()).collect();
        Err(HubError::NoSuchFile { repo: self.id.repo.clone(), file: file.to_owned(), available })
    }

    /// Descriptions first, weights last: a snapshot whose weights are complete is complete.
    fn directory(&self) -> Result<(), HubError> {
        let top_level = || self.files.keys().copied().filter(|name| !name.contains('/'));
        let selected = WeightFiles::select(top_level())
            .map_err(|source| HubError::Select { repo: self.id.repo.clone(), source })?;
        let descriptions: Vec<&str> = top_level().filter(|name| is_description(name)).collect();
        let weights = match selected {
            WeightFiles::Gguf(file) => return self.get(&[file.as_str()]),
            WeightFiles::Safetensors(files) => {
                self.get(&descriptions)?;
                files
            }
            WeightFiles::Indexed => {
                self.get(&descriptions)?;
                let index = read_index(&self.snapshot.join(INDEX_FILE))?;
                index.files().into_iter().map(str::to_owned).collect()
            }
        };
        if let Some(missing) = weights.iter().find(|name| !self.files.contains_key(name.as_str())) {
            let (repo, file) = (self.id.repo.clone(), missing.clone());
            return Err(HubError::NoSuchFile { repo, file, available: vec![] });
        }
        self.get(&weights.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Makes sure that the snapshot holds these files.
    fn get(&self, names: &[&str]) -> Result<(), HubError> {
        let mut wanted = Vec::new();
        for &name in names {
            let Some(&sibling) = self.files.get(name) else { continue };
            if !self.snapshot.join(name).exists() && !self.link_known_blob(sibling)? {
                wanted.push(sibling);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let total = wanted.iter().filter_map(|s| s.size).sum();
        self.check_space(wanted.iter().map(|s| self.bytes_to_come(s)).sum())?;
        let progress = Progress::new(Stage::Download, total);
        let mut done = 0;
        for sibling in wanted {
            self.get_one(sibling, &progress, done)?;
            done += sibling.size.unwrap_or(0);
        }
        Ok(())
    }

    /// Uses content that another revision has already brought; true if there is some.
    fn link_known_blob(&self, sibling: &Sibling) -> Result<bool, HubError> {
        let Some((blob, size)) = sibling.blob().zip(sibling.size) else { return Ok(false) };
        let content = self.blobs.join(blob);
        if std::fs::metadata(&content).is_ok_and(|m| m.is_file() && m.len() == size) {
            let link = self.snapshot.join(&sibling.rfilename);
            link_relative(&content, &link).map_err(|source| HubError::Io { path: link, source })?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Bytes of a file that an earlier, interrupted download has not brought.
    fn bytes_to_come(&self, sibling: &Sibling) -> u64 {
        let part = sibling.blob().map(|blob| self.blobs.join(blob).with_extension("part"));
        let have = part.and_then(|part| std::fs::metadata(part).ok()).map_or(0, |m| m.len());
        sibling.size.unwrap_or(0).saturating_sub(have)
    }

    fn check_space(&self, needed: u64) -> Result<(), HubError> {
        let path = &self.hub.cache;
        std::fs::create_dir_all(path).map_err(|source| HubError::Io { path: path.clone(), source })?;
        let space = rustix::fs::statvfs(path.as_path())
            .map_err(|errno| HubError::Io { path: path.clone(), source: errno.into() })?;
        let available = space.f_bavail.saturating_mul(space.f_frsize);
        if needed.saturating_add(SPARE_BYTES) > available {
            return Err(HubError::DiskFull { path: path.clone(), needed, available });
        }
        Ok(())
    }

    /// Downloads one file; resumes a few times when the connection breaks.
    fn get_one(&self, sibling: &Sibling, progress: &Progress, done: u64) -> Result<(), HubError> {
        let name = sibling.rfilename.as_str();
        progress.set_message(name);
        let mut attempt = 1;
        loop {
            match self.try_get_one(sibling, progress, done) {
                Err(error) if attempt < ATTEMPTS && is_passing(&error) => {
                    tracing::warn!(file = name, attempt, %error, "download interrupted, trying again");
                    std::thread::sleep(FIRST_PAUSE * 2u32.pow(attempt - 1));
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    fn try_get_one(&self, sibling: &Sibling, progress: &Progress, done: u64) -> Result<(), HubError> {
        let name = sibling.rfilename.as_str();
        let failed = |error| match self.hub.api_error(error, name) {
            HubError::Status { status: status @ (401 | 403), .. } => self.hub.denied(self.id, status),
            error => error,
        };
        let metadata = self.api.metadata(&self.repo.url(name)).map_err(failed)?;
        if !is_blob_name(metadata.etag()) {
            let message = format!("the etag `{}` cannot name a cache file", metadata.etag());
            let endpoint = self.hub.endpoint.clone();
            return Err(HubError::Protocol { endpoint, what: name.to_owned(), message });
        }
        let expected = sibling.size.unwrap_or(metadata.size() as u64);
        let blob = self.blobs.join(metadata.etag());
        // A part that is already as long as the file cannot be resumed: the hub has no range to send.
        let part = blob.with_extension("part");
        if std::fs::metadata(&part).is_ok_and(|m| m.len() >= expected) {
            std::fs::remove_file(&part).map_err(|source| HubError::Io { path: part, source })?;
        }
        // A dangling link, left where someone emptied `blobs`, would be in the way.
        let link = self.snapshot.join(name);
        if link.is_symlink() {
            std::fs::remove_file(&link).map_err(|source| HubError::Io { path: link, source })?;
        }
        let bar = FileProgress { progress, done };
        let path = self.repo.download_with_progress(name, bar).map_err(failed)?;
        let found = std::fs::metadata(&path).map_or(0, |m| m.len());
        if found != expected {
            // Neither the link nor the content may be taken for the file later.
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_file(&blob);
            return Err(HubError::Size { file: name.to_owned(), expected, found });
        }
        Ok(())
    }
}

/// Errors that say nothing about the cached copy of a model.
fn is_of_the_hub(error: &HubError) -> bool {
    use HubError::{Denied, Network, NoSuchRepo, Protocol, Status};
    matches!(error, Denied { .. } | Network { .. } | NoSuchRepo { .. } | Protocol { .. } | Status { .. })
}

/// Errors that go away by themselves.
fn is_passing(error: &HubError) -> bool {
    match error {
        HubError::Network { .. } => true,
        HubError::Status { status, .. } => *status == 429 || *status >= 500,
        _ => false,
    }
}

/// What the engine or the tokenizer reads besides the weights.
fn is_description(name: &str) -> bool {
    let read = [".json", ".txt", ".model", ".jinja", ".tiktoken"].iter().any(|e| name.ends_with(e));
    read && !name.ends_with(".bin.index.json")
}

/// Links `link` to `content` by the relative path that the cache format uses.
fn link_relative(content: &Path, link: &Path) -> std::io::Result<()> {
    let Some((directory, repo)) = link.parent().zip(content.parent().and_then(Path::parent)) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    std::fs::create_dir_all(directory)?;
    let up = directory.strip_prefix(repo).map_err(std::io::Error::other)?.components().map(|_| "..");
    let target = up.collect::<PathBuf>().join(content.strip_prefix(repo).map_err(std::io::Error::other)?);
    // A dangling link may be left from a cleaned cache.
    let _ = std::fs::remove_file(link);
    std::os::unix::fs::symlink(target, link)
}

/// One file's part of the bar.
struct FileProgress<'a> {
    progress: &'a Progress,
    done: u64,
}

impl hf_hub::api::Progress for FileProgress<'_> {
    fn init(&mut self, _size: usize, _filename: &str) {
        self.progress.set_position(self.done);
    }

    fn update(&mut self, size: usize) {
        self.progress.advance(size as u64);
    }

    fn finish(&mut self) {}
}
