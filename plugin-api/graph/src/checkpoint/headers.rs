//! The tensors of a whole checkpoint, of one file or of many, in one table.

use std::collections::BTreeMap;

use super::name_index::NameIndex;
use super::{CheckpointError, Dtype, gguf, nearest, safetensors};

/// One stored tensor: what it is and where its bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type as stored.
    pub dtype: Dtype,
    /// PyTorch order, out-features first, also for GGUF. Empty for a scalar.
    pub shape: Vec<usize>,
    /// Which file of the checkpoint.
    pub file: usize,
    /// First byte, counted from the start of the file. No alignment is promised for safetensors.
    pub offset: u64,
    /// Bytes of the tensor.
    pub num_bytes: u64,
}

impl TensorInfo {
    /// Elements of the tensor.
    #[must_use]
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What the files say about themselves, besides the tensors.
#[derive(Clone, Debug)]
pub enum Metadata {
    /// The `__metadata__` entries of all safetensors files.
    Safetensors(BTreeMap<String, String>),
    /// The key-value section of a GGUF file.
    Gguf(gguf::Metadata),
}

/// Every tensor of a checkpoint. Names are distinct and tensors lie inside their files.
#[derive(Clone, Debug)]
pub struct Headers {
    tensors: Vec<TensorInfo>,
    by_name: NameIndex,
    metadata: Metadata,
}

fn name_of(tensor: &TensorInfo) -> &str {
    &tensor.name
}

impl Headers {
    /// Joins the safetensors files of one checkpoint, each with the name that errors use for it. File `i` of the list
    /// becomes `file: i`.
    pub fn from_safetensors(files: Vec<(String, safetensors::File)>) -> Result<Self, CheckpointError> {
        let mut tensors = Vec::with_capacity(files.iter().map(|(_, f)| f.tensors.len()).sum());
        let mut metadata = BTreeMap::new();
        let mut names = Vec::with_capacity(files.len());
        for (file, (name, parsed)) in files.into_iter().enumerate() {
            tensors.extend(parsed.tensors.into_iter().map(|t| TensorInfo { file, ..t }));
            metadata.extend(parsed.metadata);
            names.push(name);
        }
        let by_name = NameIndex::build(&tensors, name_of).map_err(|(a, b)| CheckpointError::InTwoFiles {
            name: tensors[a].name.clone(),
            first: names[tensors[a].file].clone(),
            second: names[tensors[b].file].clone(),
        })?;
        Ok(Self { tensors, by_name, metadata: Metadata::Safetensors(metadata) })
    }

    /// The tensors and metadata of one GGUF file.
    pub fn from_gguf(file: gguf::File) -> Result<Self, CheckpointError> {
        let tensors = file.tensors;
        let by_name = NameIndex::build(&tensors, name_of)
            .map_err(|(a, _)| CheckpointError::Duplicate { what: "tensor", name: tensors[a].name.clone() })?;
        Ok(Self { tensors, by_name, metadata: Metadata::Gguf(file.metadata) })
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.find(&self.tensors, name_of, name).map(|i| &self.tensors[i])
    }

    /// All tensors, in the order of the files.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The tensors whose names start with `prefix`, in the order of their names.
    pub fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a TensorInfo> {
        self.by_name.with_prefix(&self.tensors, name_of, prefix).map(|i| &self.tensors[i])
    }

    /// Up to `n` tensors whose names a person could have meant by `name`, best first.
    #[must_use]
    pub fn nearest(&self, name: &str, n: usize) -> Vec<&TensorInfo> {
        let found = nearest::nearest(name, self.tensors.iter().map(name_of), n);
        found.into_iter().map(|i| &self.tensors[i]).collect()
    }

    /// Number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// True for a checkpoint without tensors, such as a GGUF file that only holds a vocabulary.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.num_bytes).sum()
    }

    /// What the files say about themselves.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The GGUF metadata; `None` for safetensors.
    #[must_use]
    pub fn gguf(&self) -> Option<&gguf::Metadata> {
        match &self.metadata {
            Metadata::Gguf(metadata) => Some(metadata),
            Metadata::Safetensors(_) => None,
        }
    }
}
