//! Reusable temporary memory of a thread.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Temporary memory, given back when dropped. Several may be held at once.
pub(crate) struct Scratch {
    buffer: Vec<f32>,
    len: usize,
}

/// `len` f32 with unspecified contents.
///
/// A guard rather than a callback: a closure inside a kernel body would be compiled without the features of the
/// instruction-set level.
pub(crate) fn take(len: usize) -> Scratch {
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    Scratch { buffer, len }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.buffer[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
    }
}
