//! GGUF version 2 and 3: metadata, tensor table and where the data starts.
//!
//! Layout, little endian: `GGUF`, u32 version, u64 tensors, u64 keys; the keys; the tensor table; padding to
//! `general.alignment`; the data. A string is a u64 length and bytes.

mod metadata;
mod reader;
mod value;

pub use metadata::{FromValue, Metadata};
pub use value::{Array, Value, ValueType};

use reader::Reader;

use super::{CheckpointError, Dtype, TensorInfo};

/// The first four bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Alignment of the data where `general.alignment` does not say.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Dimensions of a tensor: the format's own limit.
pub const MAX_RANK: usize = 4;
/// Smallest possible entry of the key-value section: empty key, type, one byte.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;
/// Smallest possible entry of the tensor table: empty name, no dimensions, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// What one file says.
#[derive(Clone, Debug)]
pub struct File {
    /// Format version, 2 or 3.
    pub version: u32,
    /// The key-value section.
    pub metadata: Metadata,
    /// Tensors in the order of the table, `file: 0`, shapes out-features first.
    pub tensors: Vec<TensorInfo>,
}

/// Reads everything in front of the data, given all bytes of the file. Tensor data is not touched.
pub fn parse(bytes: &[u8]) -> Result<File, CheckpointError> {
    let mut reader = Reader::new(bytes);
    let version = read_version(&mut reader)?;
    let num_tensors = reader.count(&"the tensor table", MIN_TENSOR_BYTES)?;
    let num_keys = reader.count(&"the metadata", MIN_KEY_BYTES)?;
    let metadata = Metadata::read(&mut reader, num_keys)?;
    let alignment = alignment(&metadata)?;

    // The key-value section has eaten into the room that the tensor count was checked against.
    reader.check_room(&"the tensor table", num_tensors, MIN_TENSOR_BYTES)?;
    let mut tensors = Vec::with_capacity(num_tensors as usize);
    for index in 0..num_tensors {
        tensors.push(read_tensor(&mut reader, index)?);
    }
    place_tensors(
        &mut tensors,
        reader.position().next_multiple_of(alignment),
        alignment,
        bytes.len() as u64,
    )?;
    Ok(File { version, metadata, tensors })
}

fn read_version(reader: &mut Reader<'_>) -> Result<u32, CheckpointError> {
    let magic = reader.array::<4>(&"the magic number")?;
    if magic != MAGIC {
        return Err(CheckpointError::Magic { found: magic.to_vec() });
    }
    let found = reader.u32(&"the version")?;
    let hint = match found {
        2 | 3 => return Ok(found),
        1 => "; convert the model again with current tools",
        _ if matches!(found.swap_bytes(), 1..=3) => "; the file is big endian, convert it to little endian",
        _ => "",
    };
    Err(CheckpointError::Version { found, hint })
}

fn alignment(metadata: &Metadata) -> Result<u64, CheckpointError> {
    let found = metadata.optional("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    // The upper limit keeps sums with it inside u64; real files use 32 to 4096.
    if found.is_power_of_two() && found <= 1 << 30 {
        Ok(found)
    } else {
        Err(CheckpointError::Alignment { found })
    }
}

/// One row of the tensor table; `offset` is still relative to the data section.
fn read_tensor(reader: &mut Reader<'_>, index: u64) -> Result<TensorInfo, CheckpointError> {
    let name = reader.string(&format_args!("the name of tensor {index}"))?;
    let what = format_args!("tensor `{name}`");
    let rank_at = reader.position();
    let rank = reader.u32(&what)?;
    if rank as usize > MAX_RANK {
        let what = format!("the dimensions of tensor `{name}`");
        return Err(CheckpointError::Count { what, at: rank_at, found: rank.into(), limit: MAX_RANK as u64 });
    }
    let mut dims = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        dims.push(reader.u64(&what)?);
    }
    // The file starts with the contiguous dimension, shapes here end with it.
    dims.reverse();
    let type_id = reader.u32(&what)?;
    let offset = reader.u64(&what)?;
    let Some(dtype) = Dtype::from_ggml(type_id) else {
        return Err(CheckpointError::UnknownDtype { tensor: name, found: format!("ggml type {type_id}") });
    };
    let shape: Vec<usize> = dims.iter().filter_map(|&d| usize::try_from(d).ok()).collect();
    let Some(num_bytes) = dtype.num_bytes(&shape).filter(|_| shape.len() == dims.len()) else {
        let reason = "its rows are no whole number of blocks or its size overflows";
        return Err(CheckpointError::Shape { tensor: name, dtype, shape: dims, reason });
    };
    Ok(TensorInfo { name, dtype, shape, file: 0, offset, num_bytes })
}

/// Checks all offsets and makes them absolute.
fn place_tensors(
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), CheckpointError> {
    let available = file_bytes.saturating_sub(data_start);
    for tensor in tensors.iter_mut() {
        let begin = tensor.offset;
        if !begin.is_multiple_of(alignment) {
            return Err(CheckpointError::Unaligned { tensor: tensor.name.clone(), found: begin, alignment });
        }
        let end = begin.saturating_add(tensor.num_bytes);
        if end > available {
            return Err(CheckpointError::OutOfRange { tensor: tensor.name.clone(), begin, end, available });
        }
        tensor.offset += data_start;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| t.num_bytes > 0).collect();
    order.sort_unstable_by_key(|t| t.offset);
    match order.windows(2).find(|pair| pair[0].offset + pair[0].num_bytes > pair[1].offset) {
        Some(pair) => Err(CheckpointError::Overlap {
            first: pair[0].name.clone(),
            second: pair[1].name.clone(),
            at: pair[1].offset - data_start,
        }),
        None => Ok(()),
    }
}
