//! Which of a directory's files hold the weights. Works on names alone, so that it decides for a local directory and for
//! the file list of a hub repository alike.

use std::path::Path;

/// The files that hold the weights of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightFiles {
    /// `model.safetensors.index.json` names them.
    Indexed,
    /// These safetensors files, sorted.
    Safetensors(Vec<String>),
    /// One GGUF file.
    Gguf(String),
}

/// Name of the index of a sharded checkpoint.
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";

/// A list of files without usable weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// Weights in a format that runs code when it is read.
    #[error(
        "the weights are only there as PyTorch pickles ({}); save the model again with safe_serialization=True, or use a safetensors conversion",
        files.join(", ")
    )]
    OnlyPickle {
        /// The pickle files.
        files: Vec<String>,
    },
    /// No file that could hold weights.
    #[error("no weights: expected model.safetensors, {INDEX_FILE} with its shards, or a .gguf file")]
    NoWeights,
    /// Several files, any of which could be the model.
    #[error("several files could be the model ({}); name one of them", files.join(", "))]
    Ambiguous {
        /// The candidates.
        files: Vec<String>,
    },
    /// Shards that are named by the index or by the numbering of the others, and are not there.
    #[error("{} of the weight files are missing: {}", files.len(), files.join(", "))]
    MissingShards {
        /// The missing files.
        files: Vec<String>,
    },
}

impl WeightFiles {
    /// Chooses among the file names of one directory. In this order: the index; `model*.safetensors`; another
    /// safetensors file, if there is only one; a GGUF file, if there is only one. Adapters are never chosen.
    pub fn select<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self, SelectError> {
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        if names.contains(&INDEX_FILE) {
            return Ok(Self::Indexed);
        }
        let of =
            |wanted: fn(&str) -> bool| names.iter().filter(|n| wanted(n)).map(|&n| n.to_owned()).collect();
        let safetensors: Vec<String> = of(|n| n.ends_with(".safetensors") && !n.starts_with("adapter_"));
        let model: Vec<String> = safetensors.iter().filter(|n| n.starts_with("model")).cloned().collect();
        let gguf: Vec<String> = of(is_gguf);
        let pickle: Vec<String> = of(is_pickle);
        if model.iter().any(|n| n == "model.safetensors") {
            return Ok(Self::Safetensors(vec!["model.safetensors".to_owned()]));
        }
        match (model.as_slice(), safetensors.as_slice(), gguf.as_slice()) {
            ([], [], []) if pickle.is_empty() => Err(SelectError::NoWeights),
            ([], [], []) => Err(SelectError::OnlyPickle { files: pickle }),
            ([], [], [one]) => Ok(Self::Gguf(one.clone())),
            ([], [], _) => Err(SelectError::Ambiguous { files: gguf }),
            ([], [_], _) => Ok(Self::Safetensors(safetensors)),
            ([], _, _) => Err(SelectError::Ambiguous { files: safetensors }),
            _ => complete(model),
        }
    }
}

/// Checks the numbering of `model-00001-of-00003.safetensors`.
fn complete(files: Vec<String>) -> Result<WeightFiles, SelectError> {
    let missing: Vec<String> = files
        .iter()
        .filter_map(|name| shard_total(name))
        .max()
        .map(|total| {
            let name = |i| format!("model-{i:05}-of-{total:05}.safetensors");
            (1..=total).map(name).filter(|name| !files.contains(name)).collect()
        })
        .unwrap_or_default();
    if missing.is_empty() {
        Ok(WeightFiles::Safetensors(files))
    } else {
        Err(SelectError::MissingShards { files: missing })
    }
}

fn shard_total(name: &str) -> Option<u16> {
    let (_, total) = name.strip_prefix("model-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
    total.parse().ok()
}

/// True for the name of a GGUF file.
pub(super) fn is_gguf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e == "gguf")
}

fn is_pickle(name: &str) -> bool {
    let is_weights = [".bin", ".pth", ".pt", ".ckpt"].iter().any(|e| name.ends_with(e));
    is_weights && name != "training_args.bin"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(names: &[&str]) -> Result<WeightFiles, SelectError> {
        WeightFiles::select(names.iter().copied())
    }

    fn safetensors(names: &[&str]) -> WeightFiles {
        WeightFiles::Safetensors(names.iter().map(|&n| n.to_owned()).collect())
    }

    #[test]
    fn safetensors_win_over_pickles_and_consolidated_files() {
        let names = [
            "pytorch_model.bin",
            "consolidated.safetensors",
            "model.safetensors",
            "adapter_model.safetensors",
        ];
        assert_eq!(select(&names), Ok(safetensors(&["model.safetensors"])));
        assert_eq!(
            select(&["consolidated.safetensors", "x.gguf"]),
            Ok(safetensors(&["consolidated.safetensors"]))
        );
    }

    #[test]
    fn the_index_decides_when_there_is_one() {
        assert_eq!(select(&["model.safetensors", INDEX_FILE]), Ok(WeightFiles::Indexed));
    }

    #[test]
    fn numbered_shards_without_an_index_must_be_complete() {
        let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        assert_eq!(select(&[two, one]), Ok(safetensors(&[one, two])));
        assert_eq!(select(&[two]), Err(SelectError::MissingShards { files: vec![one.to_owned()] }));
    }

    #[test]
    fn pickles_alone_are_refused_with_what_to_do() {
        let error = select(&["pytorch_model.bin", "training_args.bin"]).unwrap_err();
        assert_eq!(error, SelectError::OnlyPickle { files: vec!["pytorch_model.bin".to_owned()] });
        assert!(error.to_string().contains("safe_serialization"));
        assert_eq!(select(&["training_args.bin", "config.json"]), Err(SelectError::NoWeights));
    }

    #[test]
    fn one_gguf_file_is_taken_and_several_are_listed() {
        assert_eq!(select(&["a.gguf", "README.md"]), Ok(WeightFiles::Gguf("a.gguf".to_owned())));
        let both = vec!["a.gguf".to_owned(), "b.gguf".to_owned()];
        assert_eq!(select(&["b.gguf", "a.gguf"]), Err(SelectError::Ambiguous { files: both }));
        assert!(matches!(select(&["a.safetensors", "b.safetensors"]), Err(SelectError::Ambiguous { .. })));
    }
}
