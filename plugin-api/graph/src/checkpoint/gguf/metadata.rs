//! The key-value section: order kept, typed access with errors that name the key.

use serde_json::Value as Json;

use super::reader::Reader;
use super::{Array, CheckpointError, Value};
use crate::checkpoint::name_index::NameIndex;

/// Longest array that is part of the JSON form; per-layer lists fit, vocabularies do not.
const MAX_JSON_ARRAY: usize = 1024;

/// All keys of a file. Keys are distinct.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    by_key: NameIndex,
}

fn key_of((key, _): &(String, Value)) -> &str {
    key
}

impl Metadata {
    pub(super) fn read(reader: &mut Reader<'_>, num_keys: u64) -> Result<Self, CheckpointError> {
        let mut entries = Vec::with_capacity(num_keys as usize);
        for index in 0..num_keys {
            let key = reader.string(&format_args!("metadata key {index}"))?;
            let value = Value::read(reader, &key)?;
            entries.push((key, value));
        }
        let by_key = NameIndex::build(&entries, key_of).map_err(|(a, _)| CheckpointError::Duplicate {
            what: "metadata key",
            name: entries[a].0.clone(),
        })?;
        Ok(Self { entries, by_key })
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.by_key.find(&self.entries, key_of, key).map(|i| &self.entries[i].1)
    }

    /// Keys and values in the order of the file.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key` as a `T`; an error if it is not there or is something else.
    pub fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, CheckpointError> {
        self.optional(key)?.ok_or_else(|| CheckpointError::MissingKey { key: key.to_owned() })
    }

    /// The value of `key` as a `T`, `None` if it is not there; an error if it is something else.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = value.value_type().name();
        let wrong_type = || CheckpointError::KeyType { key: key.to_owned(), expected: T::EXPECTED, found };
        T::from_value(value).map(Some).ok_or_else(wrong_type)
    }

    /// `general.architecture`: the prefix of the model's own keys.
    pub fn architecture(&self) -> Result<&str, CheckpointError> {
        self.required("general.architecture")
    }

    /// The metadata as one JSON object in the order of the file. An array of more than 1024 elements, such as the
    /// vocabulary, becomes `{"elided": "<element type>", "length": n}`; NaN and infinities become null.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Map<String, Json> {
        self.entries.iter().map(|(key, value)| (key.clone(), value_to_json(value))).collect()
    }
}

fn value_to_json(value: &Value) -> Json {
    match value {
        Value::U8(v) => (*v).into(),
        Value::I8(v) => (*v).into(),
        Value::U16(v) => (*v).into(),
        Value::I16(v) => (*v).into(),
        Value::U32(v) => (*v).into(),
        Value::I32(v) => (*v).into(),
        Value::F32(v) => (*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::String(v) => v.as_str().into(),
        Value::Array(v) => array_to_json(v),
        Value::U64(v) => (*v).into(),
        Value::I64(v) => (*v).into(),
        Value::F64(v) => (*v).into(),
    }
}

fn array_to_json(array: &Array) -> Json {
    if array.len() > MAX_JSON_ARRAY {
        return serde_json::json!({ "elided": array.value_type().name(), "length": array.len() });
    }
    match array {
        Array::U8(v) => v.as_slice().into(),
        Array::I8(v) => v.as_slice().into(),
        Array::U16(v) => v.as_slice().into(),
        Array::I16(v) => v.as_slice().into(),
        Array::U32(v) => v.as_slice().into(),
        Array::I32(v) => v.as_slice().into(),
        Array::F32(v) => v.as_slice().into(),
        Array::Bool(v) => v.as_slice().into(),
        Array::String(v) => v.as_slice().into(),
        Array::Array(v) => v.iter().map(array_to_json).collect(),
        Array::U64(v) => v.as_slice().into(),
        Array::I64(v) => v.as_slice().into(),
        Array::F64(v) => v.as_slice().into(),
    }
}

/// A Rust type that a metadata value can be read as. Integers convert where the value fits, floats in both
/// directions; a number is never read from text.
pub trait FromValue<'a>: Sized {
    /// What a message says was expected.
    const EXPECTED: &'static str;

    /// The value as `Self`, `None` if it is of another kind or does not fit.
    fn from_value(value: &'a Value) -> Option<Self>;
}

impl FromValue<'_> for i64 {
    const EXPECTED: &'static str = "an integer";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => v.try_into().ok(),
            Value::I64(v) => Some(v),
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
        }
    }
}

impl FromValue<'_> for u64 {
    const EXPECTED: &'static str = "an integer of at least 0";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::U64(v) => Some(v),
            _ => i64::from_value(value)?.try_into().ok(),
        }
    }
}

impl FromValue<'_> for usize {
    const EXPECTED: &'static str = u64::EXPECTED;

    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value)?.try_into().ok()
    }
}

impl FromValue<'_> for u32 {
    const EXPECTED: &'static str = "an integer from 0 to 4294967295";

    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value)?.try_into().ok()
    }
}

impl FromValue<'_> for f64 {
    const EXPECTED: &'static str = "a float";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }
}

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a float";

    fn from_value(value: &Value) -> Option<Self> {
        f64::from_value(value).map(|v| v as f32)
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a boolean";

    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Bool(v) = value { Some(*v) } else { None }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &'a Value) -> Option<Self> {
        if let Value::String(v) = value { Some(v) } else { None }
    }
}

impl<'a> FromValue<'a> for &'a [String] {
    const EXPECTED: &'static str = "an array of strings";

    fn from_value(value: &'a Value) -> Option<Self> {
        if let Value::Array(Array::String(v)) = value { Some(v) } else { None }
    }
}

impl FromValue<'_> for Vec<f32> {
    const EXPECTED: &'static str = "an array of floats";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(Array::F32(v)) => Some(v.clone()),
            Value::Array(Array::F64(v)) => Some(v.iter().map(|&x| x as f32).collect()),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<i64> {
    const EXPECTED: &'static str = "an array of integers";

    fn from_value(value: &Value) -> Option<Self> {
        let Value::Array(array) = value else { return None };
        match array {
            Array::U8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::U16(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I16(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::U32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::U64(v) => v.iter().map(|&x| x.try_into().ok()).collect(),
            Array::I64(v) => Some(v.clone()),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) | Array::Array(_) => None,
        }
    }
}
