//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{CheckpointError, Headers};

/// The index of a sharded checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Index {
    /// Tensor name to shard file name.
    pub weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Parses the index. Shards are plain file names: a name with a path in it is an error, so that an index cannot
    /// point outside its directory.
    pub fn parse(json: &[u8]) -> Result<Self, CheckpointError> {
        let index: Self = serde_json::from_slice(json)
            .map_err(|e| CheckpointError::Json { what: "the safetensors index", message: e.to_string() })?;
        if index.weight_map.is_empty() {
            let message = "weight_map is empty".to_owned();
            return Err(CheckpointError::Json { what: "the safetensors index", message });
        }
        match index.weight_map.values().find(|name| !is_file_name(name)) {
            Some(name) => Err(CheckpointError::ShardName { name: name.clone() }),
            None => Ok(index),
        }
    }

    /// The shard files, each once, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<&str> {
        self.weight_map.values().map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Checks that every tensor of the index is in the shard that the index names; `files` are the names behind
    /// `TensorInfo::file`. Shards may hold more tensors than the index lists.
    pub fn check(&self, headers: &Headers, files: &[String]) -> Result<(), CheckpointError> {
        let problems: Vec<String> = self
            .weight_map
            .iter()
            .filter_map(|(tensor, shard)| match headers.get(tensor) {
                None => Some(format!("`{tensor}` should be in {shard} and is in no shard")),
                Some(found) if files.get(found.file) == Some(shard) => None,
                Some(found) => {
                    let place = files.get(found.file).map_or("another file", String::as_str);
                    Some(format!("`{tensor}` should be in {shard} and is in {place}"))
                }
            })
            .collect();
        if problems.is_empty() { Ok(()) } else { Err(CheckpointError::Index { problems }) }
    }
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}
