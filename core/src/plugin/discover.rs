//! Folders and manifests. Reads text; opens no library.
//!
//! Searched are the folders given with `--plugins` (by default `plugins` beside the program and `metrale/plugins` in the
//! user's data folder), then those of `METRALE_PLUGIN_PATH`; never the model's folder, never the current one. A search
//! folder may itself be a plugin, and each folder in it may be one.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use metrale_plugin_api::manifest::Manifest;

use super::PluginError;

/// Further search folders, separated like `PATH`.
pub const PATH_VARIABLE: &str = "METRALE_PLUGIN_PATH";

/// File name of a manifest.
pub const MANIFEST_FILE: &str = "plugin.toml";

/// No manifest is this long.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Folders to search, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath {
    folders: Vec<(PathBuf, Presence)>,
}

/// Whether a search folder has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Required,
    Optional,
}

impl SearchPath {
    /// The folders given with `--plugins`, or the default ones, then those of `METRALE_PLUGIN_PATH`.
    #[must_use]
    pub fn new(given: &[PathBuf]) -> Self {
        let mut path = if given.is_empty() { Self::default_folders() } else { Self::of(given) };
        if let Some(variable) = std::env::var_os(PATH_VARIABLE) {
            // An empty entry would be the current folder.
            let further = std::env::split_paths(&variable).filter(|p| !p.as_os_str().is_empty());
            path.folders.extend(further.map(|p| (p, Presence::Required)));
        }
        path
    }

    /// Exactly these folders.
    #[must_use]
    pub fn of(folders: &[PathBuf]) -> Self {
        Self { folders: folders.iter().map(|f| (f.clone(), Presence::Required)).collect() }
    }

    fn default_folders() -> Self {
        let beside = std::env::current_exe().ok().and_then(|e| Some(e.parent()?.join("plugins")));
        let user = dirs::data_dir().map(|d| d.join("metrale").join("plugins"));
        Self { folders: beside.into_iter().chain(user).map(|f| (f, Presence::Optional)).collect() }
    }
}

/// Identity of a file, whatever it is called.
pub type FileId = (u64, u64);

/// Identity of the file at `path`, links followed.
pub fn file_id(path: &Path) -> std::io::Result<FileId> {
    std::fs::metadata(path).map(|m| (m.dev(), m.ino()))
}

/// What one search folder holds.
#[derive(Debug)]
pub struct SearchFolder {
    /// As it was given.
    pub path: PathBuf,
    /// Its plugins, by folder name.
    pub found: Vec<Found>,
    /// Why it could not be read.
    pub problem: Option<PluginError>,
}

/// A folder with a plugin.toml.
#[derive(Debug)]
pub struct Found {
    /// The folder.
    pub folder: PathBuf,
    /// What it says about itself.
    pub manifest: Result<Manifest, PluginError>,
}

/// Searches each folder once, however often it is named or linked to.
#[must_use]
pub fn discover(path: &SearchPath) -> Vec<SearchFolder> {
    let mut seen = BTreeSet::new();
    let mut searched = Vec::new();
    for (folder, presence) in &path.folders {
        match std::fs::metadata(folder) {
            Err(_) if *presence == Presence::Optional => {}
            Ok(metadata) if !seen.insert((metadata.dev(), metadata.ino())) => {}
            _ => searched.push(search(folder, &mut seen)),
        }
    }
    searched
}

fn search(path: &Path, seen: &mut BTreeSet<FileId>) -> SearchFolder {
    let mut folder = SearchFolder { path: path.to_owned(), found: Vec::new(), problem: None };
    if path.join(MANIFEST_FILE).exists() {
        folder.found.push(read_folder(path));
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) => {
            let problem = e.to_string();
            folder.problem = Some(PluginError::Folder { path: path.to_owned(), problem });
            return folder;
        }
    };
    let mut children: Vec<_> = entries.flatten().map(|e| e.path()).collect();
    children.sort();
    for child in children {
        if !child.join(MANIFEST_FILE).exists() {
            continue;
        }
        if file_id(&child).is_ok_and(|id| seen.insert(id)) {
            folder.found.push(read_folder(&child));
        }
    }
    folder
}

/// Reads the manifest of one plugin folder.
#[must_use]
pub fn read_folder(folder: &Path) -> Found {
    Found { folder: folder.to_owned(), manifest: read_manifest(&folder.join(MANIFEST_FILE)) }
}

fn read_manifest(path: &Path) -> Result<Manifest, PluginError> {
    let wrong = |problem: String| PluginError::Manifest { path: path.to_owned(), problem };
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(MAX_MANIFEST_BYTES + 1).read_to_string(&mut text))
        .map_err(|e| wrong(e.to_string()))?;
    if read as u64 > MAX_MANIFEST_BYTES {
        return Err(wrong(format!("longer than {MAX_MANIFEST_BYTES} bytes")));
    }
    Manifest::parse(&text).map_err(|e| wrong(e.to_string()))
}

/// The library that `cargo build --release` made of the crate in `folder`, when there is none beside the manifest: in
/// `CARGO_TARGET_DIR`, or in `target` of the crate or of the workspace above it.
#[must_use]
pub fn built_library(folder: &Path, manifest: &Manifest) -> Option<PathBuf> {
    let file = manifest.library_file();
    if folder.join(&file).exists() || !folder.join("Cargo.toml").exists() {
        return None;
    }
    let folder = folder.canonicalize().ok()?;
    let workspace = folder.ancestors().find(|f| f.join("Cargo.lock").exists()).unwrap_or(&folder);
    let given = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let targets = given.into_iter().chain([folder.join("target"), workspace.join("target")]);
    targets.map(|target| target.join("release").join(&file)).find(|library| library.exists())
}
