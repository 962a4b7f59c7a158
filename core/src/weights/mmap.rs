#![allow(unsafe_code)]
//! Read-only maps of weight files and owned slices of them.
//!
//! A mapped file must not be truncated or overwritten in place while the engine runs: the kernel would raise SIGBUS or
//! show changed weights. Downloads and safetensors writers replace files by rename, which is safe. The size is taken once,
//! when the file is opened, and every slice is checked against it.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use super::WeightsError;

/// A weight file, mapped whole.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps a regular file. Nothing is read yet: pages come in when they are touched.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        // Asked before opening: opening a pipe would wait for its writer.
        let metadata = std::fs::metadata(path).map_err(WeightsError::io("open", path))?;
        if !metadata.is_file() {
            return Err(WeightsError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(WeightsError::io("open", path))?;
        // SAFETY: the map is private to the process and read-only. That nobody truncates or rewrites the file meanwhile is a
        // documented requirement of this module: no system call can enforce it.
        let map = unsafe { Mmap::map(&file) }.map_err(WeightsError::io("map", path))?;
        Ok(Self { path: path.to_owned(), map })
    }

    /// The path that the file was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

/// Bytes of one tensor, together with the map that they lie in. Cheap to clone, free to outlive the model source.
#[derive(Clone, Debug)]
pub struct TensorBytes {
    file: Arc<MappedFile>,
    range: Range<usize>,
}

impl TensorBytes {
    /// The bytes `offset..offset + num_bytes` of `file`; `None` if the file is shorter.
    #[must_use]
    pub fn new(file: Arc<MappedFile>, offset: u64, num_bytes: u64) -> Option<Self> {
        let begin = usize::try_from(offset).ok()?;
        let end = begin.checked_add(usize::try_from(num_bytes).ok()?)?;
        file.bytes().get(begin..end)?;
        Some(Self { file, range: begin..end })
    }
}

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }
}
