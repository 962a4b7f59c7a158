//! The JSON files that describe a model, as text: checked to be JSON objects of a sane size, not interpreted.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::WeightsError;

/// Largest description that is read. Real ones have a few kilobytes.
const MAX_BYTES: u64 = 16 << 20;

/// What a Hugging Face directory says about its model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigFiles {
    /// `config.json`.
    pub config: String,
    /// `generation_config.json`.
    pub generation_config: Option<String>,
    /// `preprocessor_config.json`: image and audio preprocessing.
    pub preprocessor_config: Option<String>,
    /// `hf_quant_config.json`: the recipe of a `ModelOpt` checkpoint.
    pub hf_quant_config: Option<String>,
}

impl ConfigFiles {
    /// Reads the files of `directory`. Only `config.json` has to be there.
    pub fn read(directory: &Path) -> Result<Self, WeightsError> {
        let no_config = || WeightsError::NoConfig { path: directory.to_owned() };
        Ok(Self {
            config: read_json_object(&directory.join("config.json"))?.ok_or_else(no_config)?,
            generation_config: read_json_object(&directory.join("generation_config.json"))?,
            preprocessor_config: read_json_object(&directory.join("preprocessor_config.json"))?,
            hf_quant_config: read_json_object(&directory.join("hf_quant_config.json"))?,
        })
    }
}

/// The text of a JSON file; `None` if there is no such file.
fn read_json_object(path: &Path) -> Result<Option<String>, WeightsError> {
    let Some(bytes) = read_limited(path, MAX_BYTES)? else { return Ok(None) };
    let not_json = |message: String| WeightsError::Json { path: path.to_owned(), message };
    let text = String::from_utf8(bytes).map_err(|e| not_json(e.utf8_error().to_string()))?;
    serde_json::from_str::<serde_json::Map<_, serde_json::Value>>(&text)
        .map_err(|e| not_json(e.to_string()))?;
    Ok(Some(text))
}

/// The bytes of a file of at most `limit` bytes; `None` if there is no such file.
pub(super) fn read_limited(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, WeightsError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(WeightsError::io("open", path)(source)),
    };
    let bytes = file.metadata().map_err(WeightsError::io("read", path))?.len();
    if bytes > limit {
        return Err(WeightsError::TooLarge { path: path.to_owned(), bytes, limit });
    }
    let mut content = Vec::with_capacity(bytes as usize);
    // A file that grows meanwhile, or a device without a size, is still bounded.
    file.take(limit).read_to_end(&mut content).map_err(WeightsError::io("read", path))?;
    Ok(Some(content))
}
