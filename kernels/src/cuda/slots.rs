//! Sequences that carry recurrent state in slots, on the device.

use super::device::Cuda;
use super::lists::{List, Lists};
use super::memory::View;
pub use crate::cpu::conv::SlotSequence;
use crate::error::{KernelError, Result, ensure_value};

const OP: &str = "slots";

/// The sequences of a batch: rows follow those of the sequence before. Sequences without rows leave their slot alone.
#[derive(Debug)]
pub struct Slots {
    own: Option<Lists>,
    /// First row of each sequence, then the number of rows, `[num_sequences + 1]`; and slots `[num_sequences]`.
    listed: Option<(List, List)>,
    num_sequences: usize,
    num_rows: usize,
    num_slots: usize,
    max_tokens: usize,
}

impl Slots {
    /// Room for `capacity` sequences; holds none.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(cuda: &Cuda, capacity: usize) -> Result<Self> {
        let own = Some(Lists::new(cuda, Self::list_len(capacity))?);
        Ok(Self { own, listed: None, num_sequences: 0, num_rows: 0, num_slots: 0, max_tokens: 0 })
    }

    /// Indices that so many sequences take in [`Lists`].
    #[must_use]
    pub fn list_len(num_sequences: usize) -> usize {
        2 * num_sequences + 1
    }

    /// The sequences of a step; usable after [`Lists::upload`], until the next step begins.
    ///
    /// # Errors
    /// A slot is not below `num_slots` or is used twice, or there are too many sequences.
    pub fn listed(lists: &mut Lists, sequences: &[SlotSequence], num_slots: usize) -> Result<Self> {
        let mut used = vec![false; num_slots];
        let mut starts = vec![0];
        let mut rows = 0;
        for (position, sequence) in sequences.iter().enumerate() {
            let (found, limit) = (sequence.slot, num_slots);
            let Some(slot) = used.get_mut(found) else {
                return Err(KernelError::Index { op: OP, argument: "slot", position, found, limit });
            };
            let again = sequence.num_tokens > 0 && std::mem::replace(slot, true);
            ensure_value(OP, "slot", found, !again, "used by one sequence only")?;
            rows += sequence.num_tokens;
            starts.push(rows as u32);
        }
        let slots: Vec<u32> = sequences.iter().map(|s| s.slot as u32).collect();
        Ok(Self {
            own: None,
            listed: Some((lists.push(&starts)?, lists.push(&slots)?)),
            num_sequences: sequences.len(),
            num_rows: rows,
            num_slots,
            max_tokens: sequences.iter().map(|s| s.num_tokens).max().unwrap_or(0),
        })
    }

    /// Replaces the sequences.
    ///
    /// # Errors
    /// As [`listed`](Self::listed).
    pub fn set(&mut self, cuda: &Cuda, sequences: &[SlotSequence], num_slots: usize) -> Result<()> {
        let Some(mut lists) = self.own.take() else {
            let reason = "sequences of a step are made anew for each".to_owned();
            return Err(KernelError::Unsupported { op: OP, reason });
        };
        lists.begin(Self::list_len(sequences.len()));
        let listed = Self::listed(&mut lists, sequences, num_slots);
        let uploaded = listed.and_then(|listed| lists.upload(cuda).map(|()| listed));
        match uploaded {
            Ok(listed) => *self = Self { own: Some(lists), ..listed },
            Err(error) => {
                self.own = Some(lists);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sequences.
    #[must_use]
    pub fn num_sequences(&self) -> usize {
        self.num_sequences
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
        let expected = format_args!("sequences checked against at most {num_slots}");
        ensure_value(op, "slot", self.num_slots, self.num_slots <= num_slots, expected)?;
        match &self.listed {
            Some((starts, slots)) => Ok((starts.view()?, slots.view()?)),
            None => Err(KernelError::Unsupported { op, reason: "no sequences were set".to_owned() }),
        }
    }
}
