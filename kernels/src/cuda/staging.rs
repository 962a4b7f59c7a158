//! Page-locked host memory.

use cudarc::driver::{CudaEvent, PinnedHostSlice, result};

use super::device::Cuda;
use super::memory::{Stored, View, ViewMut};
use crate::error::{Result, ensure_value};

/// Page-locked host memory for copies that run beside the host.
#[derive(Debug)]
pub struct Staging<T> {
    host: PinnedHostSlice<T>,
    /// Recorded after each copy.
    copied: CudaEvent,
}

impl<T: Stored + Default> Staging<T> {
    /// Room for `len` elements.
    ///
    /// # Errors
    /// The system cannot lock the memory.
    pub fn new(cuda: &Cuda, len: usize) -> Result<Self> {
        // SAFETY: the memory is filled before anything reads it. Flags 0: cached by the processor.
        let mut host = unsafe { cuda.context.alloc_pinned_with_flags(len.max(1), 0)? };
        host.as_mut_slice()?.fill(T::default());
        Ok(Self { host, copied: cuda.context.new_event(None)? })
    }

    /// Copies `values` to the first elements of `to`, waiting for the previous call's copy only.
    ///
    /// # Errors
    /// There are more values than the staging memory or `to` has room for.
    pub fn upload(&mut self, cuda: &Cuda, values: &[T], to: &mut ViewMut<'_, T>) -> Result<()> {
        self.put(cuda, values, to.view())
    }

    /// As [`upload`](Self::upload), to elements that nobody else writes.
    pub(super) fn put(&mut self, cuda: &Cuda, values: &[T], to: View<'_, T>) -> Result<()> {
        const OP: &str = "staging";
        let room = self.host.len().min(to.len());
        ensure_value(OP, "values", values.len(), values.len() <= room, format_args!("at most {room}"))?;
        cuda.ensure_owner(OP, to.owner())?;
        self.copied.synchronize()?;
        let host = &mut self.host.as_mut_slice()?[..values.len()];
        host.copy_from_slice(values);
        // SAFETY: as many elements lie on both sides, and the host's stay as they are until `copied`.
        unsafe { result::memcpy_htod_async(to.pointer(), host, cuda.stream.cu_stream())? };
        Ok(self.copied.record(&cuda.stream)?)
    }
}

impl<T> Drop for Staging<T> {
    fn drop(&mut self) {
        // The memory must outlive the copy. A failed device has no copy in flight.
        let _ = self.copied.synchronize();
    }
}
