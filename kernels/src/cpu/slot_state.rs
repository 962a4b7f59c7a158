//! Recurrent state in slots, and the rows that may still be taken back.
//!
//! Speculative decoding runs drafts as rows before it is known which of them are right. Such rows leave the state alone:
//! they work on a copy, and their inputs are kept. The next call of the slot first applies the inputs of those that
//! turned out to be right, in the same order and with the same arithmetic, so that the state has the bits of a sequence
//! that never drafted. A rejected row is forgotten by not being applied.

use super::sequence::SlotSequence;
use crate::error::{Result, ensure_len, ensure_value};

/// The drafts of one sequence in one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftRows {
    /// Drafts of the slot's last call that are applied to its state before the rows of this call.
    pub num_accepted: usize,
    /// Rows at the end of this call that leave the state alone.
    pub num_drafts: usize,
}

/// Inputs of the draft rows of every slot's last call.
#[derive(Debug)]
pub struct KeptInputs<'a> {
    /// One entry per sequence of the call.
    pub rows: &'a [DraftRows],
    /// `[slots, max_drafts, width]`; what a row consists of is the kernel's.
    pub inputs: &'a mut [f32],
    /// Most drafts of a sequence.
    pub max_drafts: usize,
}

/// The state of every slot.
#[derive(Debug)]
pub struct SlotState<'a> {
    /// `[slots, …]`
    pub(crate) values: &'a mut [f32],
    kept: Option<KeptInputs<'a>>,
}

impl<'a> From<&'a mut [f32]> for SlotState<'a> {
    /// Every row changes the state.
    fn from(values: &'a mut [f32]) -> Self {
        Self { values, kept: None }
    }
}

impl<'a> From<&'a mut Vec<f32>> for SlotState<'a> {
    fn from(values: &'a mut Vec<f32>) -> Self {
        values.as_mut_slice().into()
    }
}

impl<'a> SlotState<'a> {
    /// Some sequences have drafts, in this call or in their last one.
    #[must_use]
    pub fn with_drafts(values: &'a mut [f32], kept: KeptInputs<'a>) -> Self {
        Self { values, kept: Some(kept) }
    }

    /// Checks that the drafts fit the sequences and that a row of kept inputs has `width` numbers.
    pub(crate) fn check(&self, op: &'static str, sequences: &[SlotSequence], width: usize) -> Result<()> {
        let Some(kept) = &self.kept else { return Ok(()) };
        ensure_len(op, "drafts", kept.rows.len(), sequences.len())?;
        let slot_len = kept.max_drafts * width;
        for (sequence, rows) in sequences.iter().zip(kept.rows) {
            let most = kept.max_drafts.min(sequence.num_tokens);
            ensure_value(op, "num_drafts", rows.num_drafts, rows.num_drafts <= most, at_most(most))?;
            let most = kept.max_drafts;
            ensure_value(op, "num_accepted", rows.num_accepted, rows.num_accepted <= most, at_most(most))?;
            let has_drafts = *rows != DraftRows::default();
            let needed = if has_drafts { (sequence.slot + 1) * slot_len } else { 0 };
            let found = kept.inputs.len();
            ensure_value(op, "kept inputs", found, needed <= found, at_least(needed))?;
        }
        Ok(())
    }

    /// The state, and the drafts to read while it changes.
    pub(crate) fn split(&mut self) -> (&mut [f32], Drafts<'_>) {
        let drafts = self.kept.as_ref().map_or(Drafts::default(), |kept| Drafts {
            rows: kept.rows,
            inputs: kept.inputs,
            max_drafts: kept.max_drafts,
        });
        (self.values, drafts)
    }

    /// Keeps the inputs of this call's draft rows. `row` writes those of a row of the batch.
    pub(crate) fn keep(
        &mut self,
        sequences: &[SlotSequence],
        starts: &[usize],
        width: usize,
        mut row: impl FnMut(usize, &mut [f32]),
    ) {
        let Some(kept) = &mut self.kept else { return };
        for ((sequence, rows), start) in sequences.iter().zip(kept.rows).zip(starts) {
            let first = start + sequence.num_tokens - rows.num_drafts;
            for draft in 0..rows.num_drafts {
                let at = (sequence.slot * kept.max_drafts + draft) * width;
                row(first + draft, &mut kept.inputs[at..at + width]);
            }
        }
    }
}

/// What kernels read of the drafts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Drafts<'a> {
    rows: &'a [DraftRows],
    inputs: &'a [f32],
    max_drafts: usize,
}

impl<'a> Drafts<'a> {
    /// The drafts of the `index`-th sequence.
    pub(crate) fn of(&self, index: usize) -> DraftRows {
        self.rows.get(index).copied().unwrap_or_default()
    }

    /// Kept inputs of a slot's accepted drafts, `[num_accepted, width]`.
    pub(crate) fn accepted(&self, index: usize, slot: usize, width: usize) -> &'a [f32] {
        let at = slot * self.max_drafts * width;
        match self.of(index).num_accepted {
            0 => &[],
            n => &self.inputs[at..at + n * width],
        }
    }
}

fn at_most(most: usize) -> impl std::fmt::Display {
    std::fmt::from_fn(move |f| write!(f, "at most {most}"))
}

fn at_least(least: usize) -> impl std::fmt::Display {
    std::fmt::from_fn(move |f| write!(f, "at least {least}"))
}
