//! Sequences that carry recurrent state in slots.

use smallvec::SmallVec;

use crate::error::{KernelError, Result, ensure_value};

/// Rows of one sequence of the batch; they follow those of the sequence before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSequence {
    /// Rows.
    pub num_tokens: usize,
    /// Slot of the state. No two sequences of a call share one.
    pub slot: usize,
}

/// First row of each sequence; on the heap only for very many sequences.
pub(crate) type Starts = SmallVec<[usize; 128]>;

/// Checks slots and returns the first row of each sequence and the number of rows.
pub(crate) fn layout(
    op: &'static str,
    sequences: &[SlotSequence],
    num_slots: usize,
) -> Result<(Starts, usize)> {
    let mut used: SmallVec<[bool; 512]> = SmallVec::from_elem(false, num_slots);
    let mut starts = Starts::new();
    let mut rows = 0;
    for (position, sequence) in sequences.iter().enumerate() {
        let found = sequence.slot;
        let limit = num_slots;
        let slot =
            used.get_mut(found).ok_or(KernelError::Index { op, argument: "slot", position, found, limit })?;
        ensure_value(op, "slot", found, !std::mem::replace(slot, true), "used by one sequence only")?;
        starts.push(rows);
        rows += sequence.num_tokens;
    }
    Ok((starts, rows))
}
