//! What can be wrong with a checkpoint file. Variants carry data; the caller adds the path of the file.

use super::Dtype;

/// A checkpoint file that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file ends before something it promises.
    #[error(
        "the file is truncated: {what} needs {needed} bytes at byte {at}, but the file has {file_bytes} bytes; copy or download it again"
    )]
    Truncated {
        /// What was being read.
        what: String,
        /// Byte offset of the read.
        at: u64,
        /// Bytes that the read needs.
        needed: u64,
        /// Size of the whole file.
        file_bytes: u64,
    },
    /// The safetensors header is longer than the limit.
    #[error(
        "the header claims {found} bytes, the limit is {limit}; this is not a safetensors file or it is damaged"
    )]
    HeaderTooLarge {
        /// Claimed size.
        found: u64,
        /// Largest size that is accepted.
        limit: u64,
    },
    /// A JSON document cannot be parsed or has the wrong structure.
    #[error("{what} is not valid: {message}")]
    Json {
        /// Which document.
        what: &'static str,
        /// What the parser said, with line and column.
        message: String,
    },
    /// Two entries with one name.
    #[error("{what} `{name}` is listed twice")]
    Duplicate {
        /// "tensor", "metadata key".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A tensor that two files of one checkpoint hold.
    #[error("tensor `{name}` is in two files: `{first}` and `{second}`")]
    InTwoFiles {
        /// Tensor name.
        name: String,
        /// File that was read first.
        first: String,
        /// File that holds it again.
        second: String,
    },
    /// An element type that this version does not know.
    #[error(
        "tensor `{tensor}` has the unknown type {found}; it needs a newer metrale or another export of the model"
    )]
    UnknownDtype {
        /// Tensor name.
        tensor: String,
        /// Type name or number as found.
        found: String,
    },
    /// A shape that cannot be: too many dimensions, an overflow, or rows that are not whole blocks.
    #[error("tensor `{tensor}` has the impossible shape {shape:?} for {dtype}: {reason}")]
    Shape {
        /// Tensor name.
        tensor: String,
        /// Element type.
        dtype: Dtype,
        /// Shape as found, out-features first.
        shape: Vec<u64>,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Shape times element size is not the number of bytes that the header reserves.
    #[error("tensor `{tensor}` {shape:?} {dtype} needs {expected} bytes, the header gives it {found}")]
    Size {
        /// Tensor name.
        tensor: String,
        /// Element type.
        dtype: Dtype,
        /// Shape as found.
        shape: Vec<usize>,
        /// Bytes that the shape needs.
        expected: u64,
        /// Bytes between the two offsets.
        found: u64,
    },
    /// A tensor that lies outside the file.
    #[error(
        "tensor `{tensor}` lies at bytes {begin}..{end} of {available}: the file is truncated or the offset is wrong"
    )]
    OutOfRange {
        /// Tensor name.
        tensor: String,
        /// First byte, relative to the data section.
        begin: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes in the data section.
        available: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors `{first}` and `{second}` overlap at byte {at} of the data section")]
    Overlap {
        /// Tensor with the smaller offset.
        first: String,
        /// Tensor that starts inside it.
        second: String,
        /// Where the second one starts.
        at: u64,
    },
    /// Bytes of a safetensors data section that belong to no tensor.
    #[error("{bytes} bytes at byte {at} of the data section belong to no tensor: the file is damaged")]
    Hole {
        /// Where the unused bytes start.
        at: u64,
        /// How many there are.
        bytes: u64,
    },
    /// The first four bytes are not `GGUF`.
    #[error("this is not a GGUF file: it starts with {found:02x?}, expected 47 47 55 46 (\"GGUF\")")]
    Magic {
        /// The first bytes of the file.
        found: Vec<u8>,
    },
    /// A GGUF version that is not read.
    #[error("GGUF version {found} is not supported (2 and 3 are){hint}")]
    Version {
        /// Version as found, little endian.
        found: u32,
        /// What probably happened.
        hint: &'static str,
    },
    /// A count that cannot fit in the file.
    #[error("{what} at byte {at} claims {found} entries, but the file has room for at most {limit}")]
    Count {
        /// What is counted.
        what: String,
        /// Byte offset of the count.
        at: u64,
        /// The count.
        found: u64,
        /// What the rest of the file could hold.
        limit: u64,
    },
    /// A string that is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8")]
    NotUtf8 {
        /// What was being read.
        what: String,
        /// Byte offset of the string.
        at: u64,
    },
    /// A GGUF metadata value type that does not exist, or arrays nested too deeply.
    #[error("metadata key `{key}` at byte {at} has the unusable value type {found}")]
    ValueType {
        /// Metadata key.
        key: String,
        /// Byte offset of the type.
        at: u64,
        /// Type number.
        found: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key `{key}` holds the byte {found} at byte {at}, expected a boolean (0 or 1)")]
    Boolean {
        /// Metadata key.
        key: String,
        /// Byte offset of the value.
        at: u64,
        /// Byte as found.
        found: u8,
    },
    /// An alignment that is zero or no power of two.
    #[error("general.alignment is {found}, expected a power of two")]
    Alignment {
        /// Value as found.
        found: u64,
    },
    /// A tensor offset that breaks the alignment of the file.
    #[error("tensor `{tensor}` has offset {found}, which is not a multiple of the alignment {alignment}")]
    Unaligned {
        /// Tensor name.
        tensor: String,
        /// Offset as found.
        found: u64,
        /// Alignment of the file.
        alignment: u64,
    },
    /// A metadata key that is needed and not there.
    #[error("the GGUF metadata has no key `{key}`")]
    MissingKey {
        /// Metadata key.
        key: String,
    },
    /// A metadata value of another type than the one needed.
    #[error("GGUF metadata `{key}` is {found}, expected {expected}")]
    KeyType {
        /// Metadata key.
        key: String,
        /// Type that was asked for.
        expected: &'static str,
        /// Type that the file has.
        found: &'static str,
    },
    /// The index of a sharded checkpoint and its shards disagree.
    #[error("the index and the shards disagree: {}", list(problems))]
    Index {
        /// Every disagreement.
        problems: Vec<String>,
    },
    /// A file name in the index that leaves the directory.
    #[error("the index names the file `{name}`, which is not a plain file name")]
    ShardName {
        /// Name as found.
        name: String,
    },
    /// Something that a writer was given and that the format cannot hold.
    #[error("cannot write {what}: {reason}")]
    Unwritable {
        /// Tensor or key.
        what: String,
        /// Why not.
        reason: String,
    },
    /// Bytes that are no whole number of blocks, or an output of another length.
    #[error("{dtype} data of {bytes} bytes does not hold {elements} elements")]
    BlockCount {
        /// Element type.
        dtype: Dtype,
        /// Bytes given.
        bytes: usize,
        /// Elements wanted.
        elements: usize,
    },
    /// A type that cannot be converted to f32.
    #[error("{dtype} cannot be converted to f32")]
    NotConvertible {
        /// Element type.
        dtype: Dtype,
    },
    /// A NaN or an infinity in stored weights.
    #[error(
        "tensor `{tensor}` holds {value} at element {index}: the file is damaged or was exported from a diverged model"
    )]
    NotFinite {
        /// Tensor name.
        tensor: String,
        /// Index of the element (of the first element of its block for block types).
        index: usize,
        /// "NaN", "inf" or "-inf".
        value: &'static str,
    },
}

/// At most ten problems in one line, and how many more there are.
fn list(problems: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown = problems.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
    match problems.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}
