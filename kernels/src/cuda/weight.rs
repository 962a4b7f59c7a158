//! Weights on the device: a matrix `[num_rows, num_cols]` in a checkpoint format.

use super::device::Cuda;
use super::memory::{Buffer, View};
pub(super) use crate::cpu::Format;
use crate::error::{KernelError, Result, ensure_len, ensure_value};

/// A weight matrix `[num_rows, num_cols]`, row = output feature, row-major in F32, BF16 or F16.
#[derive(Debug)]
pub struct Weight {
    format: Format,
    num_rows: usize,
    num_cols: usize,
    bytes: Buffer<u8>,
}

impl Weight {
    /// Copies checkpoint bytes to the device.
    ///
    /// # Errors
    /// The format has no CUDA kernels yet, a dimension is zero, the bytes have the wrong length, or no memory is left.
    pub fn new(cuda: &Cuda, format: Format, num_rows: usize, num_cols: usize, bytes: &[u8]) -> Result<Self> {
        const OP: &str = "weight";
        if format.is_quantized() {
            let reason = format!("{format:?} weights have no CUDA kernels yet; F32, BF16 and F16 do");
            return Err(KernelError::Unsupported { op: OP, reason });
        }
        ensure_value(OP, "num_rows", num_rows, num_rows > 0, "at least 1")?;
        ensure_value(OP, "num_cols", num_cols, num_cols > 0, "at least 1")?;
        ensure_len(OP, "bytes", bytes.len(), num_rows.saturating_mul(format.row_bytes(num_cols)))?;
        Ok(Self { format, num_rows, num_cols, bytes: Buffer::from_slice(cuda, bytes)? })
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

    pub(super) fn bytes(&self) -> View<'_, u8> {
        self.bytes.view()
    }
}
