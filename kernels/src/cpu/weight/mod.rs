//! Weights: a matrix `[num_rows, num_cols]` in a checkpoint format.
//!
//! Float formats are read where they lie (a memory map or an owned buffer). Quantised formats are repacked once, at
//! construction, into groups of 16 interleaved rows of the same size (at most 3 % more, plus the padding of the last
//! group); the checkpoint's bytes are not kept. No weight is ever expanded to f32.

mod aligned;
pub(crate) mod block;
mod format;
pub(crate) mod pack;
pub(crate) mod step;

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

pub(crate) use block::BLOCK;
pub use format::Format;
pub(crate) use pack::GROUP_ROWS;

use super::pool::ThreadPool;
use crate::error::{KernelError, Result, ensure_len, ensure_value};
use aligned::AlignedBytes;
use pack::{Layout, group_bytes, with_layout};

/// Checkpoint bytes, shared between the weights that lie in them.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A weight matrix `[num_rows, num_cols]`, row = output feature. Cloning and slicing share the storage.
#[derive(Clone)]
pub struct Weight {
    format: Format,
    num_cols: usize,
    /// Rows of the storage that this weight covers.
    range: Range<usize>,
    storage: Storage,
}

#[derive(Clone)]
enum Storage {
    /// Row-major elements from a byte offset on.
    Rows { bytes: Bytes, offset: usize },
    /// Groups of interleaved rows.
    Packed(Arc<AlignedBytes>),
}

/// Borrowed storage, as the kernels see it.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    /// Row-major elements; the first byte is row 0 of the weight.
    Rows(&'a [u8]),
    /// Groups; the first byte is the group that holds row 0, which is row `skip` of its group.
    Packed {
        /// Whole groups.
        groups: &'a [u8],
        /// Rows of the first group that precede the weight.
        skip: usize,
    },
}

/// Reads single rows.
pub(crate) struct RowReader<'a> {
    format: Format,
    num_cols: usize,
    view: View<'a>,
}

impl RowReader<'_> {
    /// Writes an existing row as f32 to `num_cols` elements.
    pub(crate) fn dequantize(&self, row: usize, out: &mut [f32]) {
        match self.view {
            View::Rows(bytes) => {
                let row_bytes = self.format.row_bytes(self.num_cols);
                dequantize_floats(self.format, &bytes[row * row_bytes..][..row_bytes], out);
            }
            View::Packed { groups, skip } => {
                let (group, lane) = ((skip + row) / GROUP_ROWS, (skip + row) % GROUP_ROWS);
                let len = group_bytes(self.format, self.num_cols);
                let bytes = &groups[group * len..][..len];
                with_layout!(self.format, L => dequantize_lane::<L>(bytes, lane, out), ());
            }
        }
    }
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape = [self.num_rows(), self.num_cols];
        f.debug_struct("Weight").field("format", &self.format).field("shape", &shape).finish_non_exhaustive()
    }
}

impl Weight {
    /// A weight over `bytes[range]`, which holds exactly `num_rows` rows of `num_cols` elements in `format`. The workers
    /// of `pool` share the repacking.
    ///
    /// # Errors
    /// The range lies outside of the bytes, has the wrong length, or `num_cols` is not a multiple of the format's
    /// block.
    pub fn new(
        pool: &ThreadPool,
        format: Format,
        num_rows: usize,
        num_cols: usize,
        bytes: &Bytes,
        range: Range<usize>,
    ) -> Result<Self> {
        const OP: &str = "weight";
        let multiple = num_cols > 0 && num_cols.is_multiple_of(format.block_len());
        ensure_value(
            OP,
            "num_cols",
            num_cols,
            multiple,
            format_args!("a positive multiple of {}", format.block_len()),
        )?;
        let available = bytes.as_ref().as_ref();
        let found = range.len();
        let slice = available.get(range.clone()).ok_or_else(|| KernelError::Value {
            op: OP,
            argument: "range",
            expected: format!("an end within the {} bytes of the file", available.len()),
            found: range.end,
        })?;
        let expected = num_rows.saturating_mul(format.row_bytes(num_cols));
        ensure_len(OP, "range", found, expected)?;
        let storage = if format.is_quantized() {
            Storage::Packed(Arc::new(pack::pack(pool, format, num_rows, num_cols, slice)))
        } else {
            Storage::Rows { bytes: Arc::clone(bytes), offset: range.start }
        };
        Ok(Self { format, num_cols, range: 0..num_rows, storage })
    }

    /// A weight over a whole owned buffer, repacked by the calling thread.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_vec(format: Format, num_rows: usize, num_cols: usize, bytes: Vec<u8>) -> Result<Self> {
        let range = 0..bytes.len();
        let bytes: Bytes = Arc::new(bytes);
        Self::new(&ThreadPool::new(1), format, num_rows, num_cols, &bytes, range)
    }

    /// An f32 weight `[num_rows, num_cols]` of the given values.
    ///
    /// # Errors
    /// The number of values is not `num_rows * num_cols`.
    pub fn from_f32(num_rows: usize, num_cols: usize, values: &[f32]) -> Result<Self> {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::from_vec(Format::F32, num_rows, num_cols, bytes)
    }

    /// Rows `rows` as a weight of their own, sharing the storage. Any boundary is allowed; multiples of 16 are
    /// cheapest for quantised formats.
    ///
    /// # Errors
    /// The range is reversed or ends after the last row.
    pub fn slice_rows(&self, rows: Range<usize>) -> Result<Self> {
        let valid = rows.start <= rows.end && rows.end <= self.num_rows();
        ensure_value(
            "weight",
            "rows",
            rows.end,
            valid,
            format_args!("a range within 0..{}", self.num_rows()),
        )?;
        let start = self.range.start;
        Ok(Self { range: start + rows.start..start + rows.end, ..self.clone() })
    }

    /// Storage format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Output features.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.range.len()
    }

    /// Input features.
    #[must_use]
    pub fn num_cols(&self) -> usize {
        self.num_cols
    }

    /// Bytes of memory that one pass over the weight reads.
    #[must_use]
    pub fn num_bytes_read(&self) -> usize {
        match &self.storage {
            Storage::Rows { .. } => self.num_rows() * self.format.row_bytes(self.num_cols),
            Storage::Packed(_) => self.groups().len() * group_bytes(self.format, self.num_cols),
        }
    }

    /// Writes row `row` as f32 to `out`, which has `num_cols` elements.
    ///
    /// # Errors
    /// The row does not exist, or `out` has the wrong length.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        const OP: &str = "dequantize_row";
        ensure_value(OP, "row", row, row < self.num_rows(), format_args!("below {}", self.num_rows()))?;
        ensure_len(OP, "out", out.len(), self.num_cols)?;
        self.rows()?.dequantize(row, out);
        Ok(())
    }

    /// Row access with the bounds of the storage checked.
    pub(crate) fn rows(&self) -> Result<RowReader<'_>> {
        Ok(RowReader { format: self.format, num_cols: self.num_cols, view: self.view()? })
    }

    /// Groups of the packed storage that hold this weight's rows.
    fn groups(&self) -> Range<usize> {
        self.range.start / GROUP_ROWS..self.range.end.div_ceil(GROUP_ROWS)
    }

    /// The weight's storage, bounds checked.
    pub(crate) fn view(&self) -> Result<View<'_>> {
        match &self.storage {
            Storage::Rows { bytes, offset } => {
                let row_bytes = self.format.row_bytes(self.num_cols);
                let (start, end) =
                    (offset + self.range.start * row_bytes, offset + self.range.end * row_bytes);
                let available = bytes.as_ref().as_ref();
                available.get(start..end).map(View::Rows).ok_or(KernelError::Length {
                    op: "weight",
                    argument: "bytes",
                    expected: end,
                    found: available.len(),
                })
            }
            Storage::Packed(packed) => {
                let len = group_bytes(self.format, self.num_cols);
                let groups = self.groups();
                let bytes = &packed.as_slice()[groups.start * len..groups.end * len];
                Ok(View::Packed { groups: bytes, skip: self.range.start % GROUP_ROWS })
            }
        }
    }
}

fn dequantize_floats(format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        Format::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = bf16::from_le_bytes(*b).to_f32();
            }
        }
        _ => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = f16::from_le_bytes(*b).to_f32();
            }
        }
    }
}

fn dequantize_lane<L: Layout>(group: &[u8], lane: usize, out: &mut [f32]) {
    for (index, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let span = &group[index / L::BLOCKS * L::SUPER..][..L::SUPER];
        let (header, bodies) = span.split_at(L::HEADER);
        let body = &bodies[index % L::BLOCKS * L::BODY..][..L::BODY];
        step::dequantize_lane::<L>(header, body, lane, out);
    }
}
