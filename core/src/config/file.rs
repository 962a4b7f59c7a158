//! The `--config` file: TOML keys named like the flags, read into flag values.
//!
//! Dashes and underscores are the same in keys. An unknown key is an error that names the nearest known one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Value;

/// Values of a file: flag name (without dashes in front) to one or more flag values.
pub(super) type FileValues = BTreeMap<String, Vec<String>>;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    Read {
        /// Path as given.
        path: PathBuf,
        /// What the system reported.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{path} is not valid TOML: {source}")]
    Syntax {
        /// Path as given.
        path: PathBuf,
        /// Place and reason.
        source: Box<toml::de::Error>,
    },
    /// A key that is no flag.
    #[error("{path}: unknown key `{key}`; the nearest known key is `{nearest}`")]
    UnknownKey {
        /// Path as given.
        path: PathBuf,
        /// The key in the file.
        key: String,
        /// The most similar flag.
        nearest: String,
    },
    /// A value of a kind that the flag cannot take.
    #[error("{path}: `{key}` expects {expected}, found {found}")]
    Kind {
        /// Path as given.
        path: PathBuf,
        /// The key in the file.
        key: String,
        /// What the flag takes.
        expected: &'static str,
        /// TOML type of the value.
        found: &'static str,
    },
}

/// How a flag's value is written in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A string, number or boolean.
    Single,
    /// An array of them.
    List,
    /// A table that becomes `NAME=VALUE` items (or an array of such strings).
    Pairs,
    /// A table that becomes a JSON object (or a string with one).
    Json,
}

/// Reads `path`; `known` lists every flag with its shape.
pub(super) fn read(path: &Path, known: &BTreeMap<String, Shape>) -> Result<FileValues, FileError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    let table: toml::Table = text
        .parse()
        .map_err(|source| FileError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
    table.into_iter().map(|(key, value)| entry(path, known, &key, value)).collect()
}

fn entry(
    path: &Path,
    known: &BTreeMap<String, Shape>,
    key: &str,
    value: Value,
) -> Result<(String, Vec<String>), FileError> {
    let name = key.replace('_', "-");
    let Some(shape) = known.get(&name) else {
        let nearest = nearest(&name, known.keys()).unwrap_or_default();
        return Err(FileError::UnknownKey { path: path.to_owned(), key: key.to_owned(), nearest });
    };
    let found = value.type_str();
    let kind = |expected| FileError::Kind { path: path.to_owned(), key: key.to_owned(), expected, found };
    let values = match (shape, value) {
        (Shape::Json, Value::Table(table)) => {
            vec![serde_json::to_string(&table).map_err(|_| kind("a table that JSON can express"))?]
        }
        (Shape::Json, Value::String(text)) => vec![text],
        (Shape::Json, _) => return Err(kind("a table")),
        (Shape::Pairs, Value::Table(table)) => table
            .into_iter()
            .map(|(name, value)| scalar(&value).map(|value| format!("{name}={value}")))
            .collect::<Option<_>>()
            .ok_or_else(|| kind("a table of strings"))?,
        (Shape::List | Shape::Pairs, Value::Array(items)) => {
            items.iter().map(scalar).collect::<Option<_>>().ok_or_else(|| kind("an array of strings"))?
        }
        (Shape::Single, value) => vec![scalar(&value).ok_or_else(|| kind("a single value"))?],
        (Shape::List | Shape::Pairs, value) => {
            vec![scalar(&value).ok_or_else(|| kind("a string or an array"))?]
        }
    };
    Ok((name, values))
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(flag) => Some(flag.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a String>) -> Option<String> {
    known.min_by_key(|candidate| edit_distance(key, candidate)).cloned()
}

/// Levenshtein distance in bytes.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
