//! An allocator that counts, for tests that a hot path allocates nothing.

#![allow(unsafe_code)] // An allocator of our own counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts allocations of the whole process, once it is the global allocator of a test binary.
#[derive(Debug)]
pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Allocations of each of 50 calls. Work is shared as it comes, so each worker may need a call or two to have buffers of
/// every size: the second half is to be zero.
pub fn of_fifty(mut call: impl FnMut()) -> Vec<usize> {
    let mut once = || {
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        call();
        ALLOCATIONS.load(Ordering::SeqCst) - before
    };
    (0..50).map(|_| once()).collect()
}
