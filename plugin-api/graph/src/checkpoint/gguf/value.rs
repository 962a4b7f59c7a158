//! Typed metadata values.

use std::fmt::Display;

use super::CheckpointError;
use super::reader::Reader;

/// Arrays inside arrays that are read; real files have none.
const MAX_NESTING: u32 = 4;

macro_rules! value_types {
    ($($(#[$doc:meta])* $variant:ident($type:ty) = $id:literal, $name:literal, $bytes:literal;)*) => {
        /// Type of a metadata value, with the number that the file uses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum ValueType { $($(#[$doc])* $variant = $id,)* }

        /// One metadata value.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Value { $($(#[$doc])* $variant($type),)* }

        /// The elements of an array value, all of one type.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Array { $($(#[$doc])* $variant(Vec<$type>),)* }

        impl ValueType {
            fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// Name of the type for messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Fewest bytes that a value takes in a file.
            const fn min_bytes(self) -> u64 {
                match self { $(Self::$variant => $bytes,)* }
            }
        }

        impl Value {
            /// Type of the value.
            #[must_use]
            pub const fn value_type(&self) -> ValueType {
                match self { $(Self::$variant(_) => ValueType::$variant,)* }
            }
        }

        impl Array {
            /// Type of the elements.
            #[must_use]
            pub const fn value_type(&self) -> ValueType {
                match self { $(Self::$variant(_) => ValueType::$variant,)* }
            }

            /// Number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                match self { $(Self::$variant(v) => v.len(),)* }
            }
        }
    };
}

value_types! {
    /// Unsigned byte.
    U8(u8) = 0, "u8", 1;
    /// Signed byte.
    I8(i8) = 1, "i8", 1;
    /// Unsigned 16-bit integer.
    U16(u16) = 2, "u16", 2;
    /// Signed 16-bit integer.
    I16(i16) = 3, "i16", 2;
    /// Unsigned 32-bit integer.
    U32(u32) = 4, "u32", 4;
    /// Signed 32-bit integer.
    I32(i32) = 5, "i32", 4;
    /// Single-precision float.
    F32(f32) = 6, "f32", 4;
    /// Boolean.
    Bool(bool) = 7, "bool", 1;
    /// UTF-8 text.
    String(String) = 8, "string", 8;
    /// Array.
    Array(Array) = 9, "array", 12;
    /// Unsigned 64-bit integer.
    U64(u64) = 10, "u64", 8;
    /// Signed 64-bit integer.
    I64(i64) = 11, "i64", 8;
    /// Double-precision float.
    F64(f64) = 12, "f64", 8;
}

impl Array {
    /// True for an array without elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(reader: &mut Reader<'_>, key: &str, depth: u32) -> Result<Self, CheckpointError> {
        let what = format_args!("the array `{key}`");
        let at = reader.position();
        let element = read_type(reader, key)?;
        if depth > MAX_NESTING {
            return Err(CheckpointError::ValueType { key: key.to_owned(), at, found: element as u32 });
        }
        let n = reader.count(&what, element.min_bytes())?;
        Ok(match element {
            ValueType::U8 => Self::U8(reader.take(n, &what)?.to_vec()),
            ValueType::I8 => Self::I8(scalars(reader, n, &what, i8::from_le_bytes)?),
            ValueType::U16 => Self::U16(scalars(reader, n, &what, u16::from_le_bytes)?),
            ValueType::I16 => Self::I16(scalars(reader, n, &what, i16::from_le_bytes)?),
            ValueType::U32 => Self::U32(scalars(reader, n, &what, u32::from_le_bytes)?),
            ValueType::I32 => Self::I32(scalars(reader, n, &what, i32::from_le_bytes)?),
            ValueType::F32 => Self::F32(scalars(reader, n, &what, f32::from_le_bytes)?),
            ValueType::U64 => Self::U64(scalars(reader, n, &what, u64::from_le_bytes)?),
            ValueType::I64 => Self::I64(scalars(reader, n, &what, i64::from_le_bytes)?),
            ValueType::F64 => Self::F64(scalars(reader, n, &what, f64::from_le_bytes)?),
            ValueType::Bool => Self::Bool(each(n, || read_bool(reader, key))?),
            ValueType::String => Self::String(each(n, || reader.string(&what))?),
            ValueType::Array => Self::Array(each(n, || Self::read(reader, key, depth + 1))?),
        })
    }
}

impl Value {
    pub(super) fn read(reader: &mut Reader<'_>, key: &str) -> Result<Self, CheckpointError> {
        let what = format_args!("the value of `{key}`");
        Ok(match read_type(reader, key)? {
            ValueType::U8 => Self::U8(u8::from_le_bytes(reader.array(&what)?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(reader.array(&what)?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(reader.array(&what)?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(reader.array(&what)?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(reader.array(&what)?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(reader.array(&what)?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(reader.array(&what)?)),
            ValueType::Bool => Self::Bool(read_bool(reader, key)?),
            ValueType::String => Self::String(reader.string(&what)?),
            ValueType::Array => Self::Array(Array::read(reader, key, 1)?),
            ValueType::U64 => Self::U64(u64::from_le_bytes(reader.array(&what)?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(reader.array(&what)?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(reader.array(&what)?)),
        })
    }
}

fn read_type(reader: &mut Reader<'_>, key: &str) -> Result<ValueType, CheckpointError> {
    let at = reader.position();
    let found = reader.u32(&format_args!("the value type of `{key}`"))?;
    ValueType::from_id(found).ok_or_else(|| CheckpointError::ValueType { key: key.to_owned(), at, found })
}

fn read_bool(reader: &mut Reader<'_>, key: &str) -> Result<bool, CheckpointError> {
    let at = reader.position();
    match reader.array::<1>(&format_args!("the boolean `{key}`"))? {
        [0] => Ok(false),
        [1] => Ok(true),
        [found] => Err(CheckpointError::Boolean { key: key.to_owned(), at, found }),
    }
}

fn scalars<T, const N: usize>(
    reader: &mut Reader<'_>,
    n: u64,
    what: &dyn Display,
    convert: fn([u8; N]) -> T,
) -> Result<Vec<T>, CheckpointError> {
    // `n * N` cannot overflow: the count was checked against the rest of the file.
    let (elements, _) = reader.take(n * N as u64, what)?.as_chunks::<N>();
    Ok(elements.iter().map(|&e| convert(e)).collect())
}

fn each<T>(n: u64, mut read: impl FnMut() -> Result<T, CheckpointError>) -> Result<Vec<T>, CheckpointError> {
    let mut elements = Vec::with_capacity(n as usize);
    for _ in 0..n {
        elements.push(read()?);
    }
    Ok(elements)
}
