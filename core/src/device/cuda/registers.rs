//! Activation buffers on the device, by register.

use metrale_kernels::cuda::{Buffer, Cuda, Element, View, ViewMut};
use metrale_kernels::{KernelError, Result};

use crate::lower::plan::{ElementType, Plan, Reg};

/// The buffers of a plan. A buffer is taken out while a kernel writes it, so that inputs can be read beside it.
#[derive(Debug)]
pub(super) struct Registers {
    buffers: Vec<Option<Buffer<u8>>>,
    buffer_of: Vec<usize>,
    widths: Vec<usize>,
    types: Vec<ElementType>,
}

/// A buffer that a kernel writes; goes back with [`Registers::put`].
pub(super) struct Taken {
    place: usize,
    buffer: Buffer<u8>,
    len: usize,
}

impl Taken {
    pub(super) fn elements<T: Element>(&mut self) -> Result<ViewMut<'_, T>> {
        self.buffer.elements_mut(self.len)
    }
}

impl Registers {
    pub(super) fn new(cuda: &Cuda, plan: &Plan, max_rows: usize) -> Result<Self> {
        let buffer = |bytes: &usize| Buffer::zeroed(cuda, bytes * max_rows).map(Some);
        Ok(Self {
            buffers: plan.buffer_row_bytes.iter().map(buffer).collect::<Result<_>>()?,
            buffer_of: plan.buffers.clone(),
            widths: plan.widths.clone(),
            types: plan.types.clone(),
        })
    }

    pub(super) fn type_of(&self, reg: Reg) -> ElementType {
        self.types[reg.0]
    }

    pub(super) fn width(&self, reg: Reg) -> usize {
        self.widths[reg.0]
    }

    /// The first `rows` rows of a register of this type.
    pub(super) fn read<T: Element>(&self, reg: Reg, rows: usize) -> Result<View<'_, T>> {
        self.check::<T>(reg)?;
        let buffer = self.buffers[self.buffer_of[reg.0]].as_ref().ok_or_else(taken)?;
        buffer.elements(rows * self.widths[reg.0])
    }

    pub(super) fn write<T: Element>(&mut self, reg: Reg, rows: usize) -> Result<ViewMut<'_, T>> {
        self.check::<T>(reg)?;
        let buffer = self.buffers[self.buffer_of[reg.0]].as_mut().ok_or_else(taken)?;
        buffer.elements_mut(rows * self.widths[reg.0])
    }

    /// Whether two registers share a buffer, so that a kernel works in place.
    pub(super) fn same_buffer(&self, a: Reg, b: Reg) -> bool {
        self.buffer_of[a.0] == self.buffer_of[b.0]
    }

    pub(super) fn take<T: Element>(&mut self, reg: Reg, rows: usize) -> Result<Taken> {
        self.check::<T>(reg)?;
        let place = self.buffer_of[reg.0];
        let buffer = self.buffers[place].take().ok_or_else(taken)?;
        Ok(Taken { place, buffer, len: rows * self.widths[reg.0] })
    }

    pub(super) fn put(&mut self, taken: Taken) {
        self.buffers[taken.place] = Some(taken.buffer);
    }

    fn check<T: Element>(&self, reg: Reg) -> Result<()> {
        let expected = self.types[reg.0];
        if T::BYTES == expected.num_bytes() {
            return Ok(());
        }
        let reason =
            format!("a register of {expected:?} elements was used as one of {} bytes each", T::BYTES);
        Err(KernelError::Unsupported { op: "register", reason })
    }
}

/// The memory plan gives live registers different buffers.
fn taken() -> KernelError {
    KernelError::Unsupported { op: "register", reason: "its buffer is being written".to_owned() }
}
