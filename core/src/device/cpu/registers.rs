//! Activation buffers, by register.

use crate::lower::plan::{Plan, Reg};

/// The buffers of a plan. A buffer is taken out while a kernel writes it, so that inputs can be read beside it.
#[derive(Debug)]
pub(super) struct Registers {
    buffers: Vec<Vec<f32>>,
    buffer_of: Vec<usize>,
    widths: Vec<usize>,
    divisors: Vec<usize>,
}

/// A buffer that a kernel writes; goes back with [`Registers::put`].
pub(super) struct Taken {
    buffer: usize,
    len: usize,
    data: Vec<f32>,
}

impl Taken {
    pub(super) fn slice(&mut self) -> &mut [f32] {
        &mut self.data[..self.len]
    }
}

impl Registers {
    pub(super) fn new(plan: &Plan, max_rows: usize) -> Self {
        let buffers = plan.buffer_row_bytes.iter().map(|bytes| vec![0.0; bytes / 4 * max_rows]).collect();
        let (widths, divisors) = (plan.widths.clone(), plan.divisors.clone());
        Self { buffers, buffer_of: plan.buffers.clone(), widths, divisors }
    }

    /// Floats of a register in a step of `rows` rows.
    fn len(&self, reg: Reg, rows: usize) -> usize {
        rows / self.divisors[reg.0] * self.widths[reg.0]
    }

    /// The first `rows` rows of a register.
    pub(super) fn read(&self, reg: Reg, rows: usize) -> &[f32] {
        &self.buffers[self.buffer_of[reg.0]][..self.len(reg, rows)]
    }

    pub(super) fn write(&mut self, reg: Reg, rows: usize) -> &mut [f32] {
        let len = self.len(reg, rows);
        &mut self.buffers[self.buffer_of[reg.0]][..len]
    }

    /// Whether two registers share a buffer, so that a kernel works in place.
    pub(super) fn same_buffer(&self, a: Reg, b: Reg) -> bool {
        self.buffer_of[a.0] == self.buffer_of[b.0]
    }

    pub(super) fn take(&mut self, reg: Reg, rows: usize) -> Taken {
        let (buffer, len) = (self.buffer_of[reg.0], self.len(reg, rows));
        Taken { buffer, len, data: std::mem::take(&mut self.buffers[buffer]) }
    }

    pub(super) fn put(&mut self, taken: Taken) {
        self.buffers[taken.buffer] = taken.data;
    }
}
