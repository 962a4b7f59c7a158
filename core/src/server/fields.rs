//! Typed reading of a JSON object, field by field.
//!
//! `null` counts as absent. A wrong type is an error with the JSON path, what was expected and what was found. Fields
//! that nobody took are counted as unknown.

use serde_json::{Map, Value};

use super::error::ApiError;

/// The unread fields of one JSON object.
#[derive(Debug)]
pub(super) struct Fields {
    /// Path of the object; empty for the body itself.
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The object at `path`.
    pub(super) fn of(path: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { path: path.to_owned(), map }),
            other => Err(mismatch(path, "an object", &other)),
        }
    }

    /// Parses a request body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body)
            .map_err(|error| ApiError::malformed(format!("the request body is not valid JSON: {error}")))?;
        Self::of("", value)
    }

    /// Path of a field of this object.
    pub(super) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Takes a field whatever its type.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.take(name).map(|value| string(&self.path(name), value)).transpose()
    }

    pub(super) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(mismatch(&self.path(name), "a boolean", &other)),
        }
    }

    pub(super) fn integer(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        self.take(name).map(|value| integer(&self.path(name), &value)).transpose()
    }

    /// A finite number.
    pub(super) fn float(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        self.take(name).map(|value| float(&self.path(name), &value)).transpose()
    }

    pub(super) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(mismatch(&self.path(name), "an array", &other)),
        }
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(mismatch(&self.path(name), "an object", &other)),
        }
    }

    /// Drops known fields that change nothing here.
    pub(super) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.map.remove(*name);
        }
    }

    /// Names that nobody took.
    pub(super) fn unknown(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// The object with all that nobody took.
    pub(super) fn into_rest(self) -> Map<String, Value> {
        self.map
    }
}

pub(super) fn string(path: &str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(mismatch(path, "a string", &other)),
    }
}

pub(super) fn integer(path: &str, value: &Value) -> Result<i64, ApiError> {
    let whole = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 9e15);
    value.as_i64().or(whole.map(|number| number as i64)).ok_or_else(|| mismatch(path, "an integer", value))
}

fn float(path: &str, value: &Value) -> Result<f32, ApiError> {
    value
        .as_f64()
        .map(|number| number as f32)
        .filter(|number| number.is_finite())
        .ok_or_else(|| mismatch(path, "a number", value))
}

/// The error for a value of the wrong type.
pub(super) fn mismatch(path: &str, expected: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => format!("the boolean {flag}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    let place = if path.is_empty() { "the request body" } else { path };
    ApiError::invalid(path, format!("`{place}`: expected {expected}, found {found}"))
}
