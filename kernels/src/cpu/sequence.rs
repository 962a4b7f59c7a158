//! Sequences that carry recurrent state in slots.

use crate::error::{KernelError, Result, ensure_value};

/// Rows of one sequence of the batch; they follow those of the sequence before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSequence {
    /// Rows.
    pub num_tokens: usize,
    /// Slot of the state. No two sequences of a call share one.
    pub slot: usize,
}

/// Checks slots and returns the first row of each sequence and the number of rows.
pub(crate) fn layout(
    op: &'static str,
    sequences: &[SlotSequence],
    num_slots: usize,
) -> Result<(Vec<usize>, usize)> {
    let mut used = vec![false; num_slots];
    let mut starts = Vec::with_capacity(sequences.len());
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
