//! A mutable slice that workers write disjoint parts of.

use std::marker::PhantomData;
use std::ops::Range;

/// Hands out parts of one `&mut [T]` to several threads.
#[derive(Clone, Copy)]
pub(crate) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `part`, whose caller promises that parts do not overlap.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// Elements `range`.
    ///
    /// # Safety
    /// While the result lives, no other part that overlaps it may exist. The range must lie within the slice.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the slice, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}
