//! Owned attributes: what an author passes to an op, what a host reads from one.

use std::collections::BTreeMap;
use std::fmt;

use crate::abi::{Attr, attr_kind};

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttrValue {
    /// A whole number.
    Int(i64),
    /// A real number.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// Text.
    Str(String),
    /// Raw bytes.
    Bytes(Vec<u8>),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// Real numbers.
    Floats(Vec<f64>),
    /// Texts.
    Strs(Vec<String>),
}

impl AttrValue {
    /// What kind of value this is, for messages.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Bool(_) => "bool",
            Self::Str(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Ints(_) => "ints",
            Self::Floats(_) => "floats",
            Self::Strs(_) => "strings",
        }
    }

    fn encode(&self) -> (u32, Vec<u8>) {
        match self {
            Self::Int(v) => (attr_kind::INT, v.to_le_bytes().to_vec()),
            Self::Float(v) => (attr_kind::FLOAT, v.to_le_bytes().to_vec()),
            Self::Bool(v) => (attr_kind::BOOL, vec![u8::from(*v)]),
            Self::Str(v) => (attr_kind::STRING, v.as_bytes().to_vec()),
            Self::Bytes(v) => (attr_kind::BYTES, v.clone()),
            Self::Ints(v) => (attr_kind::INTS, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Self::Floats(v) => (attr_kind::FLOATS, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Self::Strs(v) => {
                let mut out = Vec::new();
                for s in v {
                    out.extend_from_slice(&(s.len() as u32).to_le_bytes());
                    out.extend_from_slice(s.as_bytes());
                }
                (attr_kind::STRINGS, out)
            }
        }
    }

    /// Decodes what crossed the boundary.
    ///
    /// # Errors
    /// An unknown kind, a wrong length, or text that is not UTF-8.
    pub fn decode(attr: &Attr<'_>) -> Result<Self, AttrError> {
        let data = attr.data();
        let bad = |what: &'static str| AttrError { key: attr.key.as_str().to_owned(), what };
        let text = |bytes: &[u8]| {
            std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| bad("text that is not UTF-8"))
        };
        Ok(match attr.kind {
            attr_kind::INT => {
                Self::Int(i64::from_le_bytes(data.try_into().map_err(|_| bad("an int that is not 8 bytes"))?))
            }
            attr_kind::FLOAT => Self::Float(f64::from_le_bytes(
                data.try_into().map_err(|_| bad("a float that is not 8 bytes"))?,
            )),
            attr_kind::BOOL => Self::Bool(data.first().copied().ok_or_else(|| bad("an empty bool"))? != 0),
            attr_kind::STRING => Self::Str(text(data)?),
            attr_kind::BYTES => Self::Bytes(data.to_vec()),
            attr_kind::INTS => Self::Ints(
                words(data).ok_or_else(|| bad("ints of odd length"))?.map(i64::from_le_bytes).collect(),
            ),
            attr_kind::FLOATS => Self::Floats(
                words(data).ok_or_else(|| bad("floats of odd length"))?.map(f64::from_le_bytes).collect(),
            ),
            attr_kind::STRINGS => {
                let mut out = Vec::new();
                let mut rest = data;
                while !rest.is_empty() {
                    let (len, tail) =
                        rest.split_first_chunk::<4>().ok_or_else(|| bad("a cut string list"))?;
                    let len = u32::from_le_bytes(*len) as usize;
                    let (item, tail) = tail.split_at_checked(len).ok_or_else(|| bad("a cut string list"))?;
                    out.push(text(item)?);
                    rest = tail;
                }
                Self::Strs(out)
            }
            _ => return Err(bad("a kind that this version does not know")),
        })
    }
}

fn words(data: &[u8]) -> Option<impl Iterator<Item = [u8; 8]> + '_> {
    data.len().is_multiple_of(8).then(|| data.as_chunks::<8>().0.iter().copied())
}

/// An attribute whose bytes do not mean anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrError {
    /// Which attribute.
    pub key: String,
    /// What is wrong with it.
    pub what: &'static str,
}

impl fmt::Display for AttrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attribute `{}` holds {}", self.key, self.what)
    }
}

impl std::error::Error for AttrError {}

macro_rules! from {
    ($($from:ty => |$v:ident| $to:expr),* $(,)?) => {$(
        impl From<$from> for AttrValue {
            fn from($v: $from) -> Self { $to }
        }
    )*};
}
from! {
    i64 => |v| Self::Int(v),
    i32 => |v| Self::Int(v.into()),
    u32 => |v| Self::Int(v.into()),
    usize => |v| Self::Int(v as i64),
    f64 => |v| Self::Float(v),
    f32 => |v| Self::Float(v.into()),
    bool => |v| Self::Bool(v),
    &str => |v| Self::Str(v.to_owned()),
    String => |v| Self::Str(v),
    Vec<i64> => |v| Self::Ints(v),
    Vec<f64> => |v| Self::Floats(v),
    Vec<String> => |v| Self::Strs(v),
    &[usize] => |v| Self::Ints(v.iter().map(|&x| x as i64).collect()),
    &[f32] => |v| Self::Floats(v.iter().map(|&x| x.into()).collect()),
}

/// Attributes by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attrs(BTreeMap<String, AttrValue>);

impl Attrs {
    /// No attributes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<AttrValue>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Adds one if there is a value.
    #[must_use]
    pub fn with_some(self, key: &str, value: Option<impl Into<AttrValue>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Sets one.
    pub fn insert(&mut self, key: &str, value: AttrValue) {
        self.0.insert(key.to_owned(), value);
    }

    /// Looks one up.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&AttrValue> {
        self.0.get(key)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &AttrValue)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// An int, if there is one of that name.
    #[must_use]
    pub fn int(&self, key: &str) -> Option<i64> {
        match self.get(key) {
            Some(AttrValue::Int(v)) => Some(*v),
            _ => None,
        }
    }

    /// An int that counts something.
    #[must_use]
    pub fn size(&self, key: &str) -> Option<usize> {
        self.int(key).and_then(|v| usize::try_from(v).ok())
    }

    /// A float; an int counts as one.
    #[must_use]
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.get(key) {
            Some(AttrValue::Float(v)) => Some(*v),
            Some(AttrValue::Int(v)) => Some(*v as f64),
            _ => None,
        }
    }

    /// A bool, if there is one of that name.
    #[must_use]
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key) {
            Some(AttrValue::Bool(v)) => Some(*v),
            _ => None,
        }
    }

    /// A text, if there is one of that name.
    #[must_use]
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(AttrValue::Str(v)) => Some(v),
            _ => None,
        }
    }

    /// Ints, if there are some of that name.
    #[must_use]
    pub fn ints(&self, key: &str) -> Option<&[i64]> {
        match self.get(key) {
            Some(AttrValue::Ints(v)) => Some(v),
            _ => None,
        }
    }

    /// Floats, if there are some of that name.
    #[must_use]
    pub fn floats(&self, key: &str) -> Option<&[f64]> {
        match self.get(key) {
            Some(AttrValue::Floats(v)) => Some(v),
            _ => None,
        }
    }

    /// Texts, if there are some of that name.
    #[must_use]
    pub fn strs(&self, key: &str) -> Option<&[String]> {
        match self.get(key) {
            Some(AttrValue::Strs(v)) => Some(v),
            _ => None,
        }
    }

    /// Encodes all attributes and lends them to `f` in the form that crosses the boundary.
    pub fn lend<R>(&self, f: impl FnOnce(&[Attr<'_>]) -> R) -> R {
        let encoded: Vec<_> = self.0.iter().map(|(k, v)| (k, v.encode())).collect();
        let attrs: Vec<_> = encoded.iter().map(|(k, (kind, data))| Attr::new(k, *kind, data)).collect();
        f(&attrs)
    }

    /// Decodes what crossed the boundary.
    ///
    /// # Errors
    /// The first attribute that cannot be decoded.
    pub fn from_abi(attrs: &[Attr<'_>]) -> Result<Self, AttrError> {
        attrs
            .iter()
            .map(|a| Ok((a.key.as_str().to_owned(), AttrValue::decode(a)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}
