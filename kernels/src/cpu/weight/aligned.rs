//! A byte buffer whose start lies on a cache-line boundary.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

const ALIGNMENT: usize = 64;

/// Zeroed bytes from the system, so that each page is first touched by the worker that fills it.
pub(crate) struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer is owned, and shared only through `&self` and `&mut self`.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    pub(super) fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { start: NonNull::dangling(), len };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len }
    }

    /// A size that no allocation can have ends like memory that ran out.
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGNMENT).unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes from `start` on, or none.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
        }
    }
}
