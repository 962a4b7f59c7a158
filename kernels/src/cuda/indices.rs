//! Indices on the device, checked on the host.

use super::device::Cuda;
use super::lists::{List, Lists};
use super::memory::{Buffer, View};
use super::staging::Staging;
use crate::error::{KernelError, Result, ensure_value};

const OP: &str = "indices";

/// A list of indices below a limit. Its room is fixed, so that kernels can be replayed over changing contents.
#[derive(Debug)]
pub struct Indices {
    storage: Storage,
    len: usize,
    limit: usize,
}

#[derive(Debug)]
enum Storage {
    Own { buffer: Buffer<u32>, staging: Staging<u32> },
    Listed(List),
}

fn check(indices: &[u32], limit: usize) -> Result<()> {
    match indices.iter().position(|&i| i as usize >= limit) {
        Some(position) => {
            let found = indices[position] as usize;
            Err(KernelError::Index { op: OP, argument: "indices", position, found, limit })
        }
        None => Ok(()),
    }
}

impl Indices {
    /// Room for `capacity` indices; holds none.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(cuda: &Cuda, capacity: usize) -> Result<Self> {
        let (buffer, staging) = (Buffer::zeroed(cuda, capacity)?, Staging::new(cuda, capacity)?);
        Ok(Self { storage: Storage::Own { buffer, staging }, len: 0, limit: 0 })
    }

    /// One of the lists of a step; it is there after [`Lists::upload`], until the next step begins.
    ///
    /// # Errors
    /// An index is not below `limit`, or there are too many.
    pub fn listed(lists: &mut Lists, indices: &[u32], limit: usize) -> Result<Self> {
        check(indices, limit)?;
        Ok(Self { storage: Storage::Listed(lists.push(indices)?), len: indices.len(), limit })
    }

    /// Replaces the contents.
    ///
    /// # Errors
    /// An index is not below `limit`, there are too many, or this is a list of a step. The old contents stay.
    pub fn set(&mut self, cuda: &Cuda, indices: &[u32], limit: usize) -> Result<()> {
        check(indices, limit)?;
        let Storage::Own { buffer, staging } = &mut self.storage else { return Err(read_only(OP)) };
        staging.upload(cuda, indices, &mut buffer.view_mut())?;
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
        self.view()
    }

    fn view(&self) -> Result<View<'_, u32>> {
        match &self.storage {
            Storage::Own { buffer, .. } => buffer.view().range(0..self.len),
            Storage::Listed(list) => list.view(),
        }
    }

    /// Room to write indices below `limit` on the device; see [`super::logits::argmax`].
    pub(super) fn begin_write(
        &mut self,
        op: &'static str,
        len: usize,
        limit: usize,
    ) -> Result<&mut Buffer<u32>> {
        let Storage::Own { buffer, .. } = &mut self.storage else { return Err(read_only(op)) };
        let room = buffer.len();
        ensure_value(op, "indices", len, len <= room, format_args!("room for at most {room}"))?;
        (self.len, self.limit) = (len, limit);
        Ok(buffer)
    }

    /// Waits, and copies the indices to the host.
    ///
    /// # Errors
    /// Earlier work failed.
    pub fn to_vec(&self, cuda: &Cuda) -> Result<Vec<u32>> {
        self.view()?.to_vec(cuda)
    }
}

fn read_only(op: &'static str) -> KernelError {
    KernelError::Unsupported { op, reason: "a list of a step is made anew for each".to_owned() }
}
