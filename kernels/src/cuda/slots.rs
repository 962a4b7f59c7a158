//! Sequences that carry recurrent state in slots, on the device.

use super::device::Cuda;
use super::indices::Indices;
use super::memory::View;
pub use crate::cpu::conv::SlotSequence;
use crate::error::{KernelError, Result, ensure_value};

/// The sequences of a batch: rows follow those of the sequence before.
#[derive(Debug)]
pub struct Slots {
    /// First row of each sequence, then the number of rows: `[num_sequences + 1]`.
    starts: Indices,
    slots: Indices,
    num_rows: usize,
    max_tokens: usize,
}

impl Slots {
    /// Room for `capacity` sequences; holds none.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(cuda: &Cuda, capacity: usize) -> Result<Self> {
        let (starts, slots) = (Indices::new(cuda, capacity + 1)?, Indices::new(cuda, capacity)?);
        Ok(Self { starts, slots, num_rows: 0, max_tokens: 0 })
    }

    /// Replaces the sequences.
    ///
    /// # Errors
    /// A slot is not below `num_slots` or is used twice, or there are too many sequences.
    pub fn set(&mut self, cuda: &Cuda, sequences: &[SlotSequence], num_slots: usize) -> Result<()> {
        const OP: &str = "slots";
        let mut used = vec![false; num_slots];
        let mut starts = vec![0];
        let mut rows = 0;
        for (position, sequence) in sequences.iter().enumerate() {
            let (found, limit) = (sequence.slot, num_slots);
            let Some(slot) = used.get_mut(found) else {
                return Err(KernelError::Index { op: OP, argument: "slot", position, found, limit });
            };
            ensure_value(OP, "slot", found, !std::mem::replace(slot, true), "used by one sequence only")?;
            rows += sequence.num_tokens;
            starts.push(rows as u32);
        }
        let slots: Vec<u32> = sequences.iter().map(|s| s.slot as u32).collect();
        self.slots.set(cuda, &slots, num_slots)?;
        self.starts.set(cuda, &starts, rows + 1)?;
        self.num_rows = rows;
        self.max_tokens = sequences.iter().map(|s| s.num_tokens).max().unwrap_or(0);
        Ok(())
    }

    /// Sequences.
    #[must_use]
    pub fn num_sequences(&self) -> usize {
        self.slots.len()
    }

    /// Rows of all sequences.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Rows of the longest sequence.
    pub(super) fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// (starts, slots), every slot below `num_slots`.
    pub(super) fn views(&self, op: &'static str, num_slots: usize) -> Result<(View<'_, u32>, View<'_, u32>)> {
        Ok((self.starts.below(op, "starts", self.num_rows + 1)?, self.slots.below(op, "slot", num_slots)?))
    }
}
