//! A checkpoint read whole into memory: configuration files and tensors.

use std::path::Path;

use metrale_graph::checkpoint::index::Index;
use metrale_graph::checkpoint::{CheckpointError, Headers, TensorInfo, gguf, safetensors};
use metrale_graph::{AttrValue, Attrs};

use crate::error::ModelError;

const CONFIG_FILES: [&str; 3] = ["config.json", "generation_config.json", "preprocessor_config.json"];

/// Files of one model.
#[derive(Debug)]
pub struct Checkpoint {
    /// What a plugin's `open` is given.
    attrs: Attrs,
    headers: Headers,
    files: Vec<Vec<u8>>,
}

impl Checkpoint {
    /// Reads a directory with config.json and safetensors files, or one GGUF file.
    ///
    /// # Errors
    /// A file that is missing or broken.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        if path.extension().is_some_and(|e| e == "gguf") {
            Self::read_gguf(path)
        } else {
            Self::read_parts(path, path)
        }
    }

    /// Reads configuration files from one directory and safetensors files from another.
    ///
    /// # Errors
    /// A file that is missing or broken.
    pub fn read_parts(config: &Path, weights: &Path) -> Result<Self, ModelError> {
        let mut attrs = Attrs::new().with("checkpoint.format", "safetensors");
        for name in CONFIG_FILES {
            let path = config.join(name);
            if name == "config.json" || path.exists() {
                attrs.insert(name, AttrValue::Str(String::from_utf8_lossy(&bytes(&path)?).into_owned()));
            }
        }
        let broken = |source| ModelError::Checkpoint { path: weights.to_owned(), source };
        let index_path = weights.join("model.safetensors.index.json");
        let index = index_path.exists().then(|| bytes(&index_path)).transpose()?;
        let index = index.map(|json| Index::parse(&json)).transpose().map_err(broken)?;
        let names: Vec<String> = match &index {
            Some(index) => index.files().into_iter().map(str::to_owned).collect(),
            None => vec!["model.safetensors".to_owned()],
        };
        let files = names.iter().map(|n| bytes(&weights.join(n))).collect::<Result<Vec<_>, _>>()?;
        let parsed = names.iter().cloned().zip(&files).map(|(n, f)| Ok((n, safetensors::parse(f)?)));
        let parsed = parsed.collect::<Result<_, CheckpointError>>().map_err(broken)?;
        let headers = Headers::from_safetensors(parsed).map_err(broken)?;
        if let Some(index) = index {
            index.check(&headers, &names).map_err(broken)?;
        }
        Ok(Self { attrs, headers, files })
    }

    fn read_gguf(path: &Path) -> Result<Self, ModelError> {
        let broken = |source| ModelError::Checkpoint { path: path.to_owned(), source };
        let file = bytes(path)?;
        let headers = Headers::from_gguf(gguf::parse(&file).map_err(broken)?).map_err(broken)?;
        let metadata = headers.gguf().map(gguf::Metadata::to_json).unwrap_or_default();
        let attrs = Attrs::new()
            .with("checkpoint.format", "gguf")
            .with("gguf.metadata", serde_json::Value::Object(metadata).to_string());
        Ok(Self { attrs, headers, files: vec![file] })
    }

    /// One safetensors file in memory, and what a plugin's `open` is given with it.
    ///
    /// # Errors
    /// The bytes are not a safetensors file.
    pub fn from_safetensors(attrs: Attrs, file: Vec<u8>) -> Result<Self, ModelError> {
        const NAME: &str = "model.safetensors";
        let broken = |source| ModelError::Checkpoint { path: NAME.into(), source };
        let parsed = safetensors::parse(&file).map_err(broken)?;
        let headers = Headers::from_safetensors(vec![(NAME.to_owned(), parsed)]).map_err(broken)?;
        Ok(Self { attrs: attrs.with("checkpoint.format", "safetensors"), headers, files: vec![file] })
    }

    /// Names, shapes and types of the tensors.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// What a plugin's `open` is given.
    #[must_use]
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
    }

    /// The stored bytes of a tensor of this checkpoint.
    pub(crate) fn bytes_of(&self, tensor: &TensorInfo) -> &[u8] {
        // Headers promise that every tensor lies inside its file.
        let start = tensor.offset as usize;
        &self.files[tensor.file][start..start + tensor.num_bytes as usize]
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, ModelError> {
    std::fs::read(path).map_err(|source| ModelError::File { path: path.to_owned(), source })
}
