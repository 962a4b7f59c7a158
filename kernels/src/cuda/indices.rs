//! Indices on the device, checked on the host.

use super::device::Cuda;
use super::memory::{Buffer, View};
use super::staging::Staging;
use crate::error::{KernelError, Result, ensure_value};

/// A list of indices below a limit. Its room is fixed, so that kernels can be replayed over changing contents.
#[derive(Debug)]
pub struct Indices {
    buffer: Buffer<u32>,
    staging: Staging<u32>,
    len: usize,
    limit: usize,
}

impl Indices {
    /// Room for `capacity` indices; holds none.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(cuda: &Cuda, capacity: usize) -> Result<Self> {
        let (buffer, staging) = (Buffer::zeroed(cuda, capacity)?, Staging::new(cuda, capacity)?);
        Ok(Self { buffer, staging, len: 0, limit: 0 })
    }

    /// Replaces the contents.
    ///
    /// # Errors
    /// An index is not below `limit`, or there are too many. The old contents stay.
    pub fn set(&mut self, cuda: &Cuda, indices: &[u32], limit: usize) -> Result<()> {
        const OP: &str = "indices";
        if let Some(position) = indices.iter().position(|&i| i as usize >= limit) {
            let found = indices[position] as usize;
            return Err(KernelError::Index { op: OP, argument: "indices", position, found, limit });
        }
        self.staging.upload(cuda, indices, &mut self.buffer.view_mut())?;
        (self.len, self.limit) = (indices.len(), limit);
        Ok(())
    }

    /// Number of indices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every index is below this.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The indices.
    ///
    /// # Errors
    /// They may be as large as `limit`, or larger.
    pub(super) fn below(
        &self,
        op: &'static str,
        argument: &'static str,
        limit: usize,
    ) -> Result<View<'_, u32>> {
        let expected = format_args!("a list checked against at most {limit}");
        ensure_value(op, argument, self.limit, self.limit <= limit, expected)?;
        self.buffer.view().range(0..self.len)
    }

    /// Room to write indices below `limit` on the device; see [`super::logits::argmax`].
    pub(super) fn begin_write(
        &mut self,
        op: &'static str,
        len: usize,
        limit: usize,
    ) -> Result<&mut Buffer<u32>> {
        let room = self.buffer.len();
        ensure_value(op, "indices", len, len <= room, format_args!("room for at most {room}"))?;
        (self.len, self.limit) = (len, limit);
        Ok(&mut self.buffer)
    }

    /// Waits, and copies the indices to the host.
    ///
    /// # Errors
    /// Earlier work failed.
    pub fn to_vec(&self, cuda: &Cuda) -> Result<Vec<u32>> {
        self.buffer.view().range(0..self.len)?.to_vec(cuda)
    }
}
