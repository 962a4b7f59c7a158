//! Typed reading of a model's configuration, with errors that name the path, what was expected and what was found.

mod gguf;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use crate::attr::Attrs;
use crate::error::{PluginError, Result};

/// A dimension above this is a mistake in the file, not a model.
const MAX_DIM: usize = 1 << 31;

/// config.json (or its equivalent read from GGUF metadata) and its companions.
#[derive(Clone, Debug, Default)]
pub struct Config {
    values: Map<String, Json>,
    path: String,
    generation: Map<String, Json>,
    preprocessor: Map<String, Json>,
    is_gguf: bool,
    max_model_len: Option<usize>,
}

impl Config {
    /// A configuration without any key.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Reads one config.json.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn from_json(text: &str) -> Result<Self> {
        Ok(Self { values: object("config.json", text)?, ..Self::default() })
    }

    /// Reads what the core passes to `open`: `config.json`, `generation_config.json`, `preprocessor_config.json`,
    /// `gguf.metadata`, `engine.max_model_len`. What is absent is not there.
    ///
    /// # Errors
    /// A text is not a JSON object, or there is neither config.json nor GGUF metadata.
    pub fn from_attrs(attrs: &Attrs) -> Result<Self> {
        let text = |key: &str| attrs.str(key).map(|t| object(key, t)).transpose();
        let config = text("config.json")?;
        let metadata = text("gguf.metadata")?;
        let is_gguf = metadata.is_some();
        let values = match (config, metadata) {
            (Some(config), _) => config,
            (None, Some(metadata)) => gguf::to_config(&metadata)?,
            (None, None) => {
                return Err(PluginError::new("the model has neither config.json nor GGUF metadata"));
            }
        };
        Ok(Self {
            values,
            path: String::new(),
            generation: text("generation_config.json")?.unwrap_or_default(),
            preprocessor: text("preprocessor_config.json")?.unwrap_or_default(),
            is_gguf,
            max_model_len: attrs.size("engine.max_model_len"),
        })
    }

    /// Whether the weights come from a GGUF file.
    #[must_use]
    pub fn is_gguf(&self) -> bool {
        self.is_gguf
    }

    /// The longest sequence that the engine will run, if it has decided.
    #[must_use]
    pub fn max_model_len(&self) -> Option<usize> {
        self.max_model_len
    }

    /// generation_config.json, as a configuration of its own.
    #[must_use]
    pub fn generation(&self) -> Self {
        self.nested("generation_config.json:", self.generation.clone())
    }

    /// preprocessor_config.json, as a configuration of its own.
    #[must_use]
    pub fn preprocessor(&self) -> Self {
        self.nested("preprocessor_config.json:", self.preprocessor.clone())
    }

    fn nested(&self, path: &str, values: Map<String, Json>) -> Self {
        Self {
            values,
            path: path.to_owned(),
            is_gguf: self.is_gguf,
            max_model_len: self.max_model_len,
            ..Self::default()
        }
    }

    /// Whether the key is there and not null.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|v| !v.is_null())
    }

    /// Whether the key is there, be it null.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// A key that must be there.
    ///
    /// # Errors
    /// It is missing, null or of another type.
    #[track_caller]
    pub fn required<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        match self.optional(key)? {
            Some(value) => Ok(value),
            None => Err(PluginError::new(format!(
                "`{}{key}` is missing; expected {}",
                self.path,
                type_name::<T>()
            ))),
        }
    }

    /// A key that may be missing or null.
    ///
    /// # Errors
    /// It is of another type.
    #[track_caller]
    pub fn optional<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let Some(found) = self.values.get(key).filter(|v| !v.is_null()) else { return Ok(None) };
        match serde_json::from_value(found.clone()) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(PluginError::new(format!(
                "`{}{key}`: expected {}, found {}",
                self.path,
                type_name::<T>(),
                shorten(found)
            ))),
        }
    }

    /// A switch that is off if the key is missing or null.
    ///
    /// # Errors
    /// It is of another type.
    #[track_caller]
    pub fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.optional(key)?.unwrap_or(false))
    }

    /// The kind of each of `num_hidden_layers` layers: one of the known words of `layer_types`, or what `default` says of its
    /// number where the key is missing.
    ///
    /// # Errors
    /// There are more or fewer words than layers, or one is not known.
    #[track_caller]
    pub fn layer_types<T: Copy>(&self, known: &[(&str, T)], default: impl Fn(usize) -> T) -> Result<Vec<T>> {
        let num_layers = self.dim("num_hidden_layers")?;
        let Some(words) = self.optional::<Vec<String>>("layer_types")? else {
            return Ok((0..num_layers).map(default).collect());
        };
        if words.len() != num_layers {
            let message =
                format!("`{}layer_types` has {} entries for {num_layers} layers", self.path, words.len());
            return Err(PluginError::new(message));
        }
        let kind = |word: &String| {
            known.iter().find(|(known, _)| known == word).map(|(_, kind)| *kind).ok_or_else(|| {
                let expected: Vec<_> = known.iter().map(|(word, _)| *word).collect();
                let expected = expected.join(" or ");
                PluginError::new(format!("`{}layer_types` holds `{word}`; expected {expected}", self.path))
            })
        };
        words.iter().map(kind).collect()
    }

    /// A dimension that must be there: a whole number from 1 to 2³¹.
    ///
    /// # Errors
    /// It is missing, of another type or out of range.
    #[track_caller]
    pub fn dim(&self, key: &str) -> Result<usize> {
        let value = self.required(key)?;
        self.check_dim(key, value)
    }

    /// A dimension with a default.
    ///
    /// # Errors
    /// It is of another type or out of range.
    #[track_caller]
    pub fn dim_or(&self, key: &str, default: usize) -> Result<usize> {
        match self.optional(key)? {
            Some(value) => self.check_dim(key, value),
            None => Ok(default),
        }
    }

    #[track_caller]
    fn check_dim(&self, key: &str, value: usize) -> Result<usize> {
        if (1..=MAX_DIM).contains(&value) {
            Ok(value)
        } else {
            Err(PluginError::new(format!("`{}{key}` is {value}; expected 1 to {MAX_DIM}", self.path)))
        }
    }

    /// A nested object, if there is one.
    ///
    /// # Errors
    /// The key holds something else.
    #[track_caller]
    pub fn section(&self, key: &str) -> Result<Option<Self>> {
        let Some(values) = self.optional::<Map<String, Json>>(key)? else { return Ok(None) };
        Ok(Some(self.nested(&format!("{}{key}.", self.path), values)))
    }
}

fn object(what: &str, text: &str) -> Result<Map<String, Json>> {
    match serde_json::from_str(text) {
        Ok(Json::Object(values)) => Ok(values),
        Ok(other) => {
            Err(PluginError::new(format!("{what}: expected a JSON object, found {}", shorten(&other))))
        }
        Err(e) => Err(PluginError::new(format!("{what} is not JSON: {e}"))),
    }
}

fn shorten(value: &Json) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(57).collect::<String>() + "..." }
}

fn type_name<T>() -> &'static str {
    match std::any::type_name::<T>() {
        "usize" | "u64" | "u32" => "a whole number",
        "i64" | "i32" => "an integer",
        "f64" | "f32" => "a number",
        "bool" => "true or false",
        "alloc::string::String" => "a string",
        other if other.contains("Vec") => "a list",
        _ => "an object",
    }
}
