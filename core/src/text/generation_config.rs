//! Generation defaults: `generation_config.json`, config.json and the operator's overrides.
//!
//! As in vLLM the file's sampling parameters become the defaults of requests (`do_sample` is not looked at, a
//! missing temperature is 1.0), `--generation-config vllm` ignores them, and its token ids always count. Every key
//! may be missing; a key of the wrong type is an error.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde_json::{Map, Value};

use super::error::{TextError, wrong_type};
use super::tokenizer::read_object;

/// `--generation-config`: where sampling defaults come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GenerationConfigSource {
    /// The model directory's `generation_config.json`, if there is one.
    #[default]
    Auto,
    /// The engine's neutral defaults; only token ids are read from the model directory.
    Vllm,
    /// `generation_config.json` of another directory, which must exist.
    Dir(PathBuf),
}

impl FromStr for GenerationConfigSource {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "vllm" => Self::Vllm,
            dir => Self::Dir(PathBuf::from(dir)),
        })
    }
}

/// Defaults for requests that do not say otherwise. `None` leaves the engine's neutral value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Softmax temperature.
    pub temperature: Option<f32>,
    /// Nucleus mass in (0, 1].
    pub top_p: Option<f32>,
    /// Number of tokens kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Probability floor relative to the best token.
    pub min_p: Option<f32>,
    /// 1 is off.
    pub repetition_penalty: Option<f32>,
    /// Most tokens to generate.
    pub max_new_tokens: Option<usize>,
    /// Most tokens of prompt and output together (of the output, for an encoder-decoder model).
    pub max_length: Option<usize>,
    /// Beams of beam search.
    pub num_beams: Option<usize>,
    /// Exponent of the length in a beam's score.
    pub length_penalty: Option<f32>,
    /// No n-gram of this length occurs twice; 0 is off.
    pub no_repeat_ngram_size: Option<usize>,
    /// Beginning-of-sequence token.
    pub bos_token_id: Option<u32>,
    /// Every token that ends a sequence.
    pub eos_token_id: Vec<u32>,
    /// Padding token.
    pub pad_token_id: Option<u32>,
    /// First decoder input of an encoder-decoder model.
    pub decoder_start_token_id: Option<u32>,
    /// First token generated, such as the target language.
    pub forced_bos_token_id: Option<u32>,
    /// Last token generated when `max_length` is reached.
    pub forced_eos_token_id: Vec<u32>,
    /// Where the sampling defaults came from.
    origin: String,
}

/// Keys that have a field; others of the file are not used.
const SAMPLING_KEYS: [&str; 10] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_new_tokens",
    "max_length",
    "num_beams",
    "length_penalty",
    "no_repeat_ngram_size",
];

impl GenerationConfig {
    /// Reads the defaults of the model in `dir` (`None` for a single-file checkpoint). `model_config` is config.json:
    /// it stands in for a missing file, and for missing token ids. `overrides` (`--override-generation-config`) win.
    pub fn load(
        source: &GenerationConfigSource,
        dir: Option<&Path>,
        model_config: &Value,
        overrides: Option<&Map<String, Value>>,
    ) -> Result<Self, TextError> {
        let dir = if let GenerationConfigSource::Dir(dir) = source { Some(dir.as_path()) } else { dir };
        let path = dir.map(|dir| dir.join("generation_config.json"));
        let mut file = path.as_deref().map(read_object).transpose()?.unwrap_or_default();
        let mut origin = path.as_deref().map_or_else(String::new, |path| path.display().to_string());
        if file.is_empty() {
            if let (GenerationConfigSource::Dir(_), Some(path)) = (source, path) {
                let source = std::io::Error::new(std::io::ErrorKind::NotFound, "missing or empty");
                return Err(TextError::Read { path, source });
            }
            file = model_config.as_object().cloned().unwrap_or_default();
            "config.json".clone_into(&mut origin);
        }
        if *source == GenerationConfigSource::Vllm {
            file.retain(|key, _| !SAMPLING_KEYS.contains(&key.as_str()));
            "the engine (--generation-config vllm)".clone_into(&mut origin);
        }
        let mut config = Self { origin: origin.clone(), ..Self::default() };
        config.apply(&Keys { origin: &origin, object: &file })?;
        config.fill_token_ids(model_config)?;
        if let Some(object) = overrides {
            config.apply(&Keys { origin: "--override-generation-config", object })?;
            config.origin.push_str(" and --override-generation-config");
        }
        Ok(config)
    }

    fn apply(&mut self, keys: &Keys<'_>) -> Result<(), TextError> {
        keys.set("temperature", &mut self.temperature, "a number of at least 0", non_negative)?;
        keys.set("top_p", &mut self.top_p, "a number above 0 and up to 1", |value| {
            non_negative(value).filter(|mass| *mass > 0.0 && *mass <= 1.0)
        })?;
        keys.set("top_k", &mut self.top_k, "an integer", |value| {
            value.as_i64().map(|count| u32::try_from(count.max(0)).unwrap_or(u32::MAX))
        })?;
        keys.set("min_p", &mut self.min_p, "a number between 0 and 1", |value| {
            non_negative(value).filter(|mass| *mass <= 1.0)
        })?;
        keys.set("repetition_penalty", &mut self.repetition_penalty, "a number above 0", |value| {
            non_negative(value).filter(|penalty| *penalty > 0.0)
        })?;
        keys.set("length_penalty", &mut self.length_penalty, "a number", |value| {
            value.as_f64().map(|penalty| penalty as f32)
        })?;
        keys.set("max_new_tokens", &mut self.max_new_tokens, COUNT, count)?;
        keys.set("max_length", &mut self.max_length, COUNT, count)?;
        keys.set("num_beams", &mut self.num_beams, COUNT, count)?;
        keys.set("no_repeat_ngram_size", &mut self.no_repeat_ngram_size, COUNT, count)?;
        keys.set("bos_token_id", &mut self.bos_token_id, ID, token_id)?;
        keys.set("pad_token_id", &mut self.pad_token_id, ID, token_id)?;
        keys.set("decoder_start_token_id", &mut self.decoder_start_token_id, ID, token_id)?;
        keys.set("forced_bos_token_id", &mut self.forced_bos_token_id, ID, token_id)?;
        keys.set_ids("eos_token_id", &mut self.eos_token_id)?;
        keys.set_ids("forced_eos_token_id", &mut self.forced_eos_token_id)
    }

    /// Token ids that the file does not have come from config.json or its `text_config`.
    fn fill_token_ids(&mut self, model_config: &Value) -> Result<(), TextError> {
        for object in [Some(model_config), model_config.get("text_config")].into_iter().flatten() {
            let Some(object) = object.as_object() else { continue };
            let keys = Keys { origin: "config.json", object };
            let single = [
                ("bos_token_id", &mut self.bos_token_id),
                ("pad_token_id", &mut self.pad_token_id),
                ("decoder_start_token_id", &mut self.decoder_start_token_id),
                ("forced_bos_token_id", &mut self.forced_bos_token_id),
            ];
            for (key, slot) in single.into_iter().filter(|(_, slot)| slot.is_none()) {
                keys.set(key, slot, ID, token_id)?;
            }
            for (key, slot) in [
                ("eos_token_id", &mut self.eos_token_id),
                ("forced_eos_token_id", &mut self.forced_eos_token_id),
            ] {
                if slot.is_empty() {
                    keys.set_ids(key, slot)?;
                }
            }
        }
        Ok(())
    }

    /// Adds end-of-sequence ids that are not listed yet, such as the tokenizer's.
    pub fn add_eos(&mut self, ids: &[u32]) {
        for &id in ids {
            if !self.eos_token_id.contains(&id) {
                self.eos_token_id.push(id);
            }
        }
    }
}

/// One line for the log: the defaults in effect and where they came from.
impl fmt::Display for GenerationConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn text<T: ToString>(name: &str, value: Option<&T>) -> Option<String> {
            value.map(|value| format!("{name} {}", value.to_string()))
        }
        let values = [
            text("temperature", self.temperature.as_ref()),
            text("top_p", self.top_p.as_ref()),
            text("top_k", self.top_k.as_ref()),
            text("min_p", self.min_p.as_ref()),
            text("repetition_penalty", self.repetition_penalty.as_ref()),
            text("max_new_tokens", self.max_new_tokens.as_ref()),
            text("max_length", self.max_length.as_ref()),
            text("num_beams", self.num_beams.as_ref()),
            text("length_penalty", self.length_penalty.as_ref()),
            text("no_repeat_ngram_size", self.no_repeat_ngram_size.as_ref()),
        ];
        let values: Vec<String> = values.into_iter().flatten().collect();
        let values = if values.is_empty() { "neutral".to_owned() } else { values.join(", ") };
        write!(f, "generation defaults: {values}; eos {:?}; from {}", self.eos_token_id, self.origin)
    }
}

const COUNT: &str = "an integer of at least 0";
const ID: &str = "a token id";

fn non_negative(value: &Value) -> Option<f32> {
    value.as_f64().filter(|number| *number >= 0.0).map(|number| number as f32)
}

fn count(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|count| usize::try_from(count).ok())
}

fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// A JSON object that is read key by key; null counts as missing.
struct Keys<'a> {
    origin: &'a str,
    object: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn set<T>(
        &self,
        key: &str,
        slot: &mut Option<T>,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<(), TextError> {
        if let Some(value) = self.object.get(key).filter(|value| !value.is_null()) {
            *slot = Some(read(value).ok_or_else(|| wrong_type(self.origin, key, expected, value))?);
        }
        Ok(())
    }

    fn set_ids(&self, key: &str, slot: &mut Vec<u32>) -> Result<(), TextError> {
        let mut ids = None;
        self.set(key, &mut ids, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(token_id).collect(),
            id => Some(vec![token_id(id)?]),
        })?;
        if let Some(ids) = ids {
            *slot = ids;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn dir_with(text: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
        dir
    }

    fn load(
        source: &GenerationConfigSource,
        text: &str,
        config: &Value,
    ) -> Result<GenerationConfig, TextError> {
        GenerationConfig::load(source, Some(dir_with(text).path()), config, None)
    }

    #[test]
    fn file_sets_sampling_defaults_whatever_do_sample_says() {
        let text =
            r#"{"do_sample": false, "temperature": 0.6, "top_k": -1, "eos_token_id": [5, 6], "x": {}}"#;
        let config = load(&GenerationConfigSource::Auto, text, &json!({"eos_token_id": 9})).unwrap();
        assert_eq!(config.temperature, Some(0.6));
        assert_eq!(config.top_k, Some(0));
        assert_eq!(config.top_p, None);
        assert_eq!(config.eos_token_id, [5, 6]);
    }

    #[test]
    fn vllm_source_keeps_only_token_ids() {
        let text = r#"{"temperature": 0.6, "eos_token_id": 5, "forced_bos_token_id": 7}"#;
        let config = load(&GenerationConfigSource::Vllm, text, &json!({})).unwrap();
        assert_eq!((config.temperature, &config.eos_token_id[..]), (None, &[5][..]));
        assert_eq!(config.forced_bos_token_id, Some(7));
    }

    #[test]
    fn missing_ids_come_from_the_model_config() {
        let config =
            json!({"text_config": {"eos_token_id": 3}, "decoder_start_token_id": 2, "bos_token_id": null});
        let config = load(&GenerationConfigSource::Auto, r#"{"top_p": 0.9}"#, &config).unwrap();
        assert_eq!((&config.eos_token_id[..], config.decoder_start_token_id), (&[3][..], Some(2)));
        assert_eq!(config.bos_token_id, None);
    }

    #[test]
    fn without_a_file_the_model_config_stands_in() {
        let dir = tempfile::tempdir().unwrap();
        let model = json!({"max_length": 200, "num_beams": 5, "eos_token_id": 2});
        let config =
            GenerationConfig::load(&GenerationConfigSource::Auto, Some(dir.path()), &model, None).unwrap();
        assert_eq!((config.max_length, config.num_beams), (Some(200), Some(5)));
        let missing = GenerationConfigSource::Dir(dir.path().to_owned());
        let error = GenerationConfig::load(&missing, None, &model, None).unwrap_err();
        assert!(error.to_string().contains("generation_config.json"), "{error}");
    }

    #[test]
    fn wrong_types_are_errors_with_file_and_key() {
        let error =
            load(&GenerationConfigSource::Auto, r#"{"eos_token_id": ["a"]}"#, &json!({})).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("generation_config.json: `eos_token_id` must be a token id"), "{message}");
        let error = load(&GenerationConfigSource::Auto, r#"{"top_p": 0}"#, &json!({})).unwrap_err();
        assert!(error.to_string().contains("`top_p` must be a number above 0"), "{error}");
        let error = load(&GenerationConfigSource::Auto, "{\n\"top_p\": ,", &json!({})).unwrap_err();
        assert!(error.to_string().contains("line 2, column"), "{error}");
    }

    #[test]
    fn overrides_win_and_the_log_line_shows_the_result() {
        let dir = dir_with(r#"{"temperature": 0.6, "eos_token_id": 1}"#);
        let overrides = json!({"temperature": 0.1, "top_k": 40});
        let mut config = GenerationConfig::load(
            &GenerationConfigSource::Auto,
            Some(dir.path()),
            &json!({}),
            overrides.as_object(),
        )
        .unwrap();
        config.add_eos(&[1, 4]);
        let line = config.to_string();
        assert!(
            line.starts_with("generation defaults: temperature 0.1, top_k 40; eos [1, 4]; from "),
            "{line}"
        );
    }
}
