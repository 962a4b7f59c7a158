//! Reusable temporary memory of a thread.

use std::cell::RefCell;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `len` f32 of temporary memory with unspecified contents. Calls may nest.
pub(crate) fn with_f32<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    let result = f(&mut buffer[..len]);
    BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
    result
}
