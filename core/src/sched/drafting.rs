//! What a sequence carries from step to step for speculative decoding.

use std::ops::Range;

/// The drafts of one sequence.
#[derive(Debug, Default)]
pub(super) struct Drafting {
    /// How the sequence may go on; the next step verifies it.
    pub(super) tokens: Vec<u32>,
    /// Drafts that the last step accepted. They are computed; recurrent state takes them in with the next step.
    pub(super) num_accepted: usize,
    /// Rows of the last step that computed tokens of the sequence, those of rejected drafts aside; empty once a drafter has
    /// been told.
    pub(super) new_rows: Range<usize>,
}

impl Drafting {
    /// Forgets everything: the sequence is computed from the start again.
    pub(super) fn reset(&mut self) {
        self.tokens.clear();
        self.num_accepted = 0;
        self.new_rows = 0..0;
    }

    /// Takes an old buffer back.
    pub(super) fn reuse(&mut self, mut buffer: Vec<u32>) {
        buffer.clear();
        self.tokens = buffer;
    }
}
