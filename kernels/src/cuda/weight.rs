//! Weights on the device: a matrix `[num_rows, num_cols]` in a checkpoint format.

use super::device::Cuda;
use super::launch::{Arguments, Grid};
use super::memory::{Buffer, View};
use super::planes::{self, Sizes};
pub(super) use crate::cpu::Format;
use crate::error::{Result, ensure_len, ensure_value};

/// A weight matrix `[num_rows, num_cols]`, row = output feature. Float formats are row-major as in the checkpoint;
/// quantised ones are cut into planes.
#[derive(Debug)]
pub struct Weight {
    format: Format,
    num_rows: usize,
    num_cols: usize,
    bytes: Buffer<u8>,
}

/// The planes of a quantised weight; see [`planes`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Planes<'a> {
    pub(super) quants: View<'a, u8>,
    pub(super) high: View<'a, u8>,
    pub(super) scales: View<'a, u8>,
    pub(super) supers: View<'a, u8>,
}

impl Weight {
    /// Copies checkpoint bytes to the device.
    ///
    /// # Errors
    /// A dimension is zero or the columns are not whole blocks, the bytes have the wrong length, or no memory is left.
    pub fn new(cuda: &Cuda, format: Format, num_rows: usize, num_cols: usize, bytes: &[u8]) -> Result<Self> {
        const OP: &str = "weight";
        ensure_value(OP, "num_rows", num_rows, num_rows > 0, "at least 1")?;
        let block = format.block_len();
        let whole = num_cols > 0 && num_cols.is_multiple_of(block);
        ensure_value(OP, "num_cols", num_cols, whole, format_args!("a positive multiple of {block}"))?;
        ensure_len(OP, "bytes", bytes.len(), num_rows.saturating_mul(format.row_bytes(num_cols)))?;
        let bytes = if format.is_quantized() {
            Buffer::from_slice(cuda, &planes::pack(format, num_cols, bytes))?
        } else {
            Buffer::from_slice(cuda, bytes)?
        };
        Ok(Self { format, num_rows, num_cols, bytes })
    }

    /// A matrix in bf16 of numbers between -`scale` and `scale` that depend on the seed and their place only, for runs
    /// without a checkpoint.
    ///
    /// # Errors
    /// A dimension is zero, or no memory is left.
    pub fn dummy(cuda: &Cuda, num_rows: usize, num_cols: usize, scale: f32, seed: u32) -> Result<Self> {
        const OP: &str = "weight";
        for (name, value) in [("num_rows", num_rows), ("num_cols", num_cols)] {
            ensure_value(OP, name, value, value > 0, "at least 1")?;
        }
        let len = num_rows * num_cols;
        let bytes = Buffer::zeroed(cuda, 2 * len)?;
        let arguments = Arguments::new().view(bytes.view()).size(len).float(scale).int(seed as usize >> 1);
        // SAFETY: the buffer has room for `len` bf16 elements, and nobody else knows it yet.
        unsafe { cuda.launch(OP, "fill_dummy", Grid::elements(cuda, len, 1), arguments)? };
        Ok(Self { format: Format::BF16, num_rows, num_cols, bytes })
    }

    /// Storage format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Output features.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Input features.
    #[must_use]
    pub fn num_cols(&self) -> usize {
        self.num_cols
    }

    /// Bytes of device memory that one pass over the weight reads.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// A float weight's elements.
    pub(super) fn bytes(&self) -> View<'_, u8> {
        self.bytes.view()
    }

    /// A quantised weight's planes.
    pub(super) fn planes(&self) -> Result<Planes<'_>> {
        let [quants, high, scales, supers, end] =
            Sizes::of(self.format).offsets(self.num_rows * self.num_cols / 32);
        let view = |range| self.bytes.view().range(range);
        Ok(Planes {
            quants: view(quants..high)?,
            high: view(high..scales)?,
            scales: view(scales..supers)?,
            supers: view(supers..end)?,
        })
    }
}
