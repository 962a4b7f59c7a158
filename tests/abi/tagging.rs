//! An allocator that knows its own blocks: it aborts when it is asked to free another's.

use std::alloc::{GlobalAlloc, Layout, System};

/// Puts a header with `TAG` before every block.
pub(crate) struct Tagging<const TAG: u64>;

/// Offset of a block from its header's start: the alignment, so that the block is aligned too.
fn offset(layout: Layout) -> usize {
    layout.align().max(size_of::<u64>())
}

fn with_header(layout: Layout) -> Option<Layout> {
    let size = layout.size().checked_add(offset(layout))?;
    Layout::from_size_align(size, offset(layout)).ok()
}

// SAFETY: blocks come from `System`, larger by a header and at its end; `dealloc` undoes exactly that.
unsafe impl<const TAG: u64> GlobalAlloc for Tagging<TAG> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = with_header(layout) else { return std::ptr::null_mut() };
        // SAFETY: the size is not zero, it has a header.
        let start = unsafe { System.alloc(whole) };
        if start.is_null() {
            return start;
        }
        // SAFETY: the header lies inside the block, aligned to at least 8.
        unsafe { start.cast::<u64>().write(TAG) };
        // SAFETY: the block is `offset` bytes longer than asked.
        unsafe { start.add(offset(layout)) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: every allocator's blocks have readable bytes before them: a header here, malloc's bookkeeping elsewhere.
        let start = unsafe { block.sub(offset(layout)) };
        // SAFETY: as above.
        if unsafe { start.cast::<u64>().read() } != TAG {
            std::process::abort();
        }
        // SAFETY: cleared so that freeing it twice is noticed.
        unsafe { start.cast::<u64>().write(0) };
        if let Some(whole) = with_header(layout) {
            // SAFETY: `start` came from `System.alloc(whole)`.
            unsafe { System.dealloc(start, whole) };
        }
    }
}
