//! The safetensors header: `u64` length, JSON, data. Stricter than the format asks for: names are distinct, and every
//! disagreement between dtype, shape, offsets and file size is an error that names the tensor.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{CheckpointError, Dtype, TensorInfo};

/// Bytes of the length in front of the header.
const LENGTH_BYTES: u64 = 8;
/// Largest header that is read; the reference implementation has the same limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Largest number of dimensions that is read.
const MAX_RANK: usize = 16;

/// What one file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// Tensors in the order of the header, `file: 0`.
    pub tensors: Vec<TensorInfo>,
    /// The `__metadata__` entries.
    pub metadata: BTreeMap<String, String>,
}

/// Reads the header of a file, given all bytes of the file. Tensor data is not touched.
pub fn parse(bytes: &[u8]) -> Result<File, CheckpointError> {
    let json = header_json(bytes)?;
    let header: Header<'_> = serde_json::from_slice(json)
        .map_err(|e| CheckpointError::Json { what: "the safetensors header", message: e.to_string() })?;
    let data_start = LENGTH_BYTES + json.len() as u64;
    let data_bytes = bytes.len() as u64 - data_start;
    let tensors = header
        .tensors
        .into_iter()
        .map(|(name, entry)| entry.check(name, data_start, data_bytes))
        .collect::<Result<Vec<_>, _>>()?;
    check_names(&tensors)?;
    check_cover(&tensors, data_start, data_bytes)?;
    Ok(File { tensors, metadata: header.metadata })
}

fn header_json(bytes: &[u8]) -> Result<&[u8], CheckpointError> {
    let truncated = |at, needed| CheckpointError::Truncated {
        what: "the safetensors header".to_owned(),
        at,
        needed,
        file_bytes: bytes.len() as u64,
    };
    let (length, rest) = bytes.split_first_chunk().ok_or_else(|| truncated(0, LENGTH_BYTES))?;
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(CheckpointError::HeaderTooLarge { found: length, limit: MAX_HEADER_BYTES });
    }
    rest.get(..length as usize).ok_or_else(|| truncated(LENGTH_BYTES, length))
}

fn check_names(tensors: &[TensorInfo]) -> Result<(), CheckpointError> {
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(CheckpointError::Duplicate { what: "tensor", name: pair[0].to_owned() }),
        None => Ok(()),
    }
}

/// The tensors tile the data section: no overlap, no unused bytes.
fn check_cover(tensors: &[TensorInfo], data_start: u64, data_bytes: u64) -> Result<(), CheckpointError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_unstable_by_key(|t| (t.offset, t.num_bytes));
    let mut covered = 0;
    let mut previous = "";
    for tensor in order {
        let begin = tensor.offset - data_start;
        if begin < covered {
            let (first, second) = (previous.to_owned(), tensor.name.clone());
            return Err(CheckpointError::Overlap { first, second, at: begin });
        }
        if begin > covered {
            return Err(CheckpointError::Hole { at: covered, bytes: begin - covered });
        }
        covered = begin + tensor.num_bytes;
        previous = &tensor.name;
    }
    if covered < data_bytes {
        return Err(CheckpointError::Hole { at: covered, bytes: data_bytes - covered });
    }
    Ok(())
}

/// One entry of the header, as written.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    dtype: std::borrow::Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Entry<'_> {
    fn check(self, name: String, data_start: u64, data_bytes: u64) -> Result<TensorInfo, CheckpointError> {
        let Some(dtype) = Dtype::from_safetensors(&self.dtype) else {
            return Err(CheckpointError::UnknownDtype { tensor: name, found: self.dtype.into_owned() });
        };
        if self.shape.len() > MAX_RANK {
            let shape = self.shape[..MAX_RANK].to_vec();
            return Err(CheckpointError::Shape { tensor: name, dtype, shape, reason: "too many dimensions" });
        }
        let shape: Vec<usize> = self.shape.iter().filter_map(|&d| usize::try_from(d).ok()).collect();
        let expected = dtype.num_bytes(&shape).filter(|_| shape.len() == self.shape.len());
        let Some(expected) = expected else {
            let reason = "its size overflows or is no whole number of bytes";
            return Err(CheckpointError::Shape { tensor: name, dtype, shape: self.shape, reason });
        };
        let (begin, end) = self.data_offsets;
        let found = end.saturating_sub(begin);
        if found != expected {
            return Err(CheckpointError::Size { tensor: name, dtype, shape, expected, found });
        }
        if begin > end || end > data_bytes {
            return Err(CheckpointError::OutOfRange { tensor: name, begin, end, available: data_bytes });
        }
        Ok(TensorInfo { name, dtype, shape, file: 0, offset: data_start + begin, num_bytes: found })
    }
}

/// The header with its order and its duplicates kept.
struct Header<'a> {
    tensors: Vec<(String, Entry<'a>)>,
    metadata: BTreeMap<String, String>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Header<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header<'de>, A::Error> {
        let mut header = Header { tensors: Vec::new(), metadata: BTreeMap::new() };
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                header.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                continue;
            }
            let entry =
                map.next_value().map_err(|e| A::Error::custom(format_args!("tensor `{name}`: {e}")))?;
            header.tensors.push((name, entry));
        }
        Ok(header)
    }
}
