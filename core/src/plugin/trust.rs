//! Which plugins may be opened: permissions of their folders, and the hashes in `plugins.lock`.
//!
//! A search folder with a `plugins.lock` is pinned: what the lock does not list, or lists with another hash, is refused.
//! Without one, every plugin in it is trusted; the registry says so in one line.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::PluginError;

/// File name of the lock, in the search folder.
pub const LOCK_FILE: &str = "plugins.lock";

const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o002;

/// Pins of one search folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// By plugin name.
    #[serde(default, rename = "plugin")]
    pub plugins: BTreeMap<String, Pin>,
}

/// One pinned plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Version, for people.
    pub version: String,
    /// Hex digest of the library.
    pub sha256: String,
}

impl Lock {
    /// Reads the lock of a search folder; `None` when there is none.
    ///
    /// # Errors
    /// The file cannot be read or is not a lock.
    pub fn read(folder: &Path) -> Result<Option<Self>, PluginError> {
        let path = folder.join(LOCK_FILE);
        let wrong = |problem: String| PluginError::Lock { path: path.clone(), problem };
        match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map(Some).map_err(|e| wrong(e.to_string().trim().to_owned())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(wrong(e.to_string())),
        }
    }

    /// Writes the lock of a search folder and returns its path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, PluginError> {
        let path = folder.join(LOCK_FILE);
        let wrong = |problem: String| PluginError::Lock { path: path.clone(), problem };
        let text = toml::to_string(self).map_err(|e| wrong(e.to_string()))?;
        std::fs::write(&path, text).map_err(|e| wrong(e.to_string()))?;
        Ok(path)
    }

    /// Compares a plugin's library with its pin.
    ///
    /// # Errors
    /// The plugin is not listed, or with another hash.
    pub fn check(&self, name: &str, library: &Path, sha256: &str, folder: &Path) -> Result<(), PluginError> {
        let lock = folder.join(LOCK_FILE);
        match self.plugins.get(name) {
            None => Err(PluginError::NotLocked { name: name.to_owned(), lock }),
            Some(pin) if pin.sha256 == sha256 => Ok(()),
            Some(pin) => Err(PluginError::HashMismatch {
                name: name.to_owned(),
                path: library.to_owned(),
                locked: pin.sha256.clone(),
                found: sha256.to_owned(),
                by: lock,
            }),
        }
    }
}

/// Refuses a file or folder that anyone may change. A folder with the sticky bit is fine for `shared` use, as `/tmp` is:
/// only owners rename what is in it.
///
/// # Errors
/// It is world-writable.
pub fn check_permissions(path: &Path, shared: bool) -> Result<(), PluginError> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let mode = metadata.mode();
    if mode & OTHERS_WRITE == 0 || (shared && mode & STICKY != 0) {
        return Ok(());
    }
    Err(PluginError::WorldWritable { path: path.to_owned(), mode })
}

/// Hex digest of a file.
///
/// # Errors
/// The file cannot be read.
pub fn sha256_of(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..count]);
    }
}

/// Hex digest of bytes.
#[must_use]
pub fn sha256_of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}
