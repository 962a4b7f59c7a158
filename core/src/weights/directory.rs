//! A model on disk, opened: its headers, its bytes, its description.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrale_graph::checkpoint::index::Index;
use metrale_graph::checkpoint::{Headers, TensorInfo, gguf, safetensors};

use super::config_files::read_limited;
use super::select::{INDEX_FILE, SelectError, WeightFiles};
use super::{ConfigFiles, MappedFile, TensorBytes, WeightsError};

/// Largest index that is read: a name and a file name for each of a million tensors.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// A Hugging Face directory or a GGUF file. Opening reads headers only; tensor data is mapped.
#[derive(Clone, Debug)]
pub struct ModelSource {
    path: PathBuf,
    files: Vec<Arc<MappedFile>>,
    headers: Headers,
    config: Option<ConfigFiles>,
}

impl ModelSource {
    /// Opens a directory with `config.json` and weights, a directory with one GGUF file, or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let metadata = std::fs::metadata(path).map_err(WeightsError::io("open", path))?;
        if metadata.is_dir() {
            return Self::open_directory(path);
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("gguf") => Self::open_gguf(path, path),
            Some("safetensors" | "json") => {
                let hint = "; give the directory that it is in";
                Err(WeightsError::NotAModel { path: path.to_owned(), hint })
            }
            _ => Err(WeightsError::NotAModel { path: path.to_owned(), hint: "" }),
        }
    }

    /// Reads the description only, for a model without weights: a directory with `config.json`, or that file itself.
    pub fn open_config(path: &Path) -> Result<Self, WeightsError> {
        let directory = if path.is_file() { path.parent().unwrap_or(Path::new(".")) } else { path };
        let config = ConfigFiles::read(directory)?;
        let headers = Headers::from_safetensors(Vec::new()).map_err(WeightsError::checkpoint(path))?;
        Ok(Self { path: directory.to_owned(), files: Vec::new(), headers, config: Some(config) })
    }

    fn open_directory(directory: &Path) -> Result<Self, WeightsError> {
        let names = file_names(directory)?;
        let in_directory = |source| WeightsError::Select { path: directory.to_owned(), source };
        let selected = WeightFiles::select(names.iter().map(String::as_str));
        if let Ok(WeightFiles::Gguf(name)) = &selected {
            return Self::open_gguf(directory, &directory.join(name));
        }
        // A directory that is no model at all is better described by its missing config than by its missing weights.
        let config = ConfigFiles::read(directory)?;
        let (shards, index) = match selected.map_err(in_directory)? {
            WeightFiles::Indexed => {
                let index = read_index(&directory.join(INDEX_FILE))?;
                (index.files().into_iter().map(str::to_owned).collect(), Some(index))
            }
            WeightFiles::Safetensors(files) => (files, None),
            WeightFiles::Gguf(file) => (vec![file], None),
        };
        let missing: Vec<String> = shards.iter().filter(|s| !names.contains(s)).cloned().collect();
        if !missing.is_empty() {
            return Err(in_directory(SelectError::MissingShards { files: missing }));
        }
        let (files, headers) = open_shards(directory, &shards)?;
        if let Some(index) = index {
            let path = directory.join(INDEX_FILE);
            index.check(&headers, &shards).map_err(WeightsError::checkpoint(&path))?;
        }
        Ok(Self { path: directory.to_owned(), files, headers, config: Some(config) })
    }

    fn open_gguf(path: &Path, file: &Path) -> Result<Self, WeightsError> {
        let mapped = MappedFile::open(file)?;
        let parsed = gguf::parse(mapped.bytes()).map_err(WeightsError::checkpoint(file))?;
        let parts = parsed.metadata.optional("split.count").map_err(WeightsError::checkpoint(file))?;
        if let Some(parts @ 2..) = parts {
            return Err(WeightsError::SplitGguf { path: file.to_owned(), parts });
        }
        let headers = Headers::from_gguf(parsed).map_err(WeightsError::checkpoint(file))?;
        if headers.is_empty() {
            return Err(WeightsError::NoTensors { path: file.to_owned() });
        }
        Ok(Self { path: path.to_owned(), files: vec![Arc::new(mapped)], headers, config: None })
    }

    /// The directory or file that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every tensor of the model.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// What the directory says about the model; `None` for GGUF, whose description is in the headers.
    #[must_use]
    pub fn config(&self) -> Option<&ConfigFiles> {
        self.config.as_ref()
    }

    /// The path of another file of the model directory, such as `tokenizer.json`; `None` if there is no such file, and for
    /// a GGUF file.
    #[must_use]
    pub fn find_file(&self, name: &str) -> Option<PathBuf> {
        self.config.as_ref()?;
        Some(self.path.join(name)).filter(|path| path.is_file())
    }

    /// The stored bytes of a tensor of [`Self::headers`]. They may start at any address.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> Result<&[u8], WeightsError> {
        let begin = usize::try_from(tensor.offset).ok();
        let end = begin.and_then(|b| b.checked_add(usize::try_from(tensor.num_bytes).ok()?));
        let range = begin.zip(end).map(|(begin, end)| begin..end);
        let file = self.files.get(tensor.file);
        file.zip(range).and_then(|(file, range)| file.bytes().get(range)).ok_or_else(|| self.foreign(tensor))
    }

    /// The stored bytes of a tensor of [`Self::headers`], with the map that they lie in.
    pub fn tensor(&self, tensor: &TensorInfo) -> Result<TensorBytes, WeightsError> {
        let file = self.files.get(tensor.file).cloned();
        file.and_then(|file| TensorBytes::new(file, tensor.offset, tensor.num_bytes))
            .ok_or_else(|| self.foreign(tensor))
    }

    /// The file that a tensor of [`Self::headers`] is in.
    #[must_use]
    pub fn file_of(&self, tensor: &TensorInfo) -> Option<&Path> {
        self.files.get(tensor.file).map(|file| file.path())
    }

    fn foreign(&self, tensor: &TensorInfo) -> WeightsError {
        WeightsError::ForeignTensor { tensor: tensor.name.clone(), path: self.path.clone() }
    }
}

/// Names of the files of a directory. A link to nothing is no file: a half-filled hub cache has those.
fn file_names(directory: &Path) -> Result<Vec<String>, WeightsError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(WeightsError::io("list", directory))? {
        let path = entry.map_err(WeightsError::io("list", directory))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).filter(|_| path.is_file());
        names.extend(name.map(str::to_owned));
    }
    Ok(names)
}

/// Reads an index file that is known to be there.
pub(super) fn read_index(path: &Path) -> Result<Index, WeightsError> {
    let json = read_limited(path, MAX_INDEX_BYTES)?.unwrap_or_default();
    Index::parse(&json).map_err(WeightsError::checkpoint(path))
}

fn open_shards(directory: &Path, shards: &[String]) -> Result<(Vec<Arc<MappedFile>>, Headers), WeightsError> {
    let mut files = Vec::with_capacity(shards.len());
    let mut parsed = Vec::with_capacity(shards.len());
    for shard in shards {
        let path = directory.join(shard);
        let file = MappedFile::open(&path)?;
        parsed.push((
            shard.clone(),
            safetensors::parse(file.bytes()).map_err(WeightsError::checkpoint(&path))?,
        ));
        files.push(Arc::new(file));
    }
    let headers = Headers::from_safetensors(parsed).map_err(WeightsError::checkpoint(directory))?;
    Ok((files, headers))
}

#[cfg(test)]
mod tests;
