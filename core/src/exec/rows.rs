//! What the kernels need to know about the rows of a step.

use metrale_kernels::cpu::attention::Sequence;
use metrale_kernels::cpu::conv::{DraftRows, SlotSequence};
use smallvec::SmallVec;

use super::{BatchSeq, BlockId};

/// Per row and per sequence; buffers are reused between steps.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(super) positions: Vec<u32>,
    pub(super) slots: Vec<u32>,
    pub(super) state_slots: Vec<SlotSequence>,
    /// Empty while no sequence has drafts to compute or to take in.
    pub(super) draft_rows: Vec<DraftRows>,
    spans: Vec<Span>,
    block_tables: Vec<u32>,
}

/// A sequence and the length of its block table.
#[derive(Clone, Copy, Debug)]
struct Span {
    num_tokens: usize,
    context_len: usize,
    num_blocks: usize,
}

impl Rows {
    pub(super) fn clear(&mut self) {
        self.positions.clear();
        self.slots.clear();
        self.state_slots.clear();
        self.draft_rows.clear();
        self.spans.clear();
        self.block_tables.clear();
    }

    /// Rows that are written to the pages of their sequence.
    pub(super) fn fill(&mut self, seqs: &[BatchSeq], block_size: usize) {
        self.clear();
        for seq in seqs {
            self.push(&seq.block_table, seq.num_computed, seq.num_tokens, block_size);
            let slot = seq.state_slot.0 as usize;
            self.state_slots.push(SlotSequence { num_tokens: seq.num_tokens, slot });
        }
        if seqs.iter().any(|seq| seq.num_drafts + seq.num_accepted > 0) {
            let rows =
                |seq: &BatchSeq| DraftRows { num_accepted: seq.num_accepted, num_drafts: seq.num_drafts };
            self.draft_rows.extend(seqs.iter().map(rows));
        }
    }

    /// Rows `first .. first + num_tokens` of one more sequence.
    pub(super) fn push(&mut self, table: &[BlockId], first: usize, num_tokens: usize, block_size: usize) {
        for position in first..first + num_tokens {
            let block = table[position / block_size].0 as usize;
            self.positions.push(position as u32);
            self.slots.push((block * block_size + position % block_size) as u32);
        }
        self.push_span(table, first + num_tokens, num_tokens);
    }

    /// The sources that rows attend to; nothing is written.
    pub(super) fn fill_sources(&mut self, seqs: &[BatchSeq]) {
        self.clear();
        for seq in seqs {
            if let Some(source) = &seq.source {
                self.push_span(&source.block_table, source.token_ids.len(), seq.num_tokens);
            }
        }
    }

    /// Rows that attend among themselves only.
    pub(super) fn push_segment(&mut self, num_rows: usize) {
        self.push_span(&[], num_rows, num_rows);
    }

    fn push_span(&mut self, table: &[BlockId], context_len: usize, num_tokens: usize) {
        self.block_tables.extend(table.iter().map(|block| block.0));
        self.spans.push(Span { num_tokens, context_len, num_blocks: table.len() });
    }

    /// The sequences as attention sees them.
    pub(super) fn sequences(&self) -> SmallVec<[Sequence<'_>; 32]> {
        let mut tables = self.block_tables.as_slice();
        self.spans
            .iter()
            .map(|span| {
                let (block_table, rest) = tables.split_at(span.num_blocks);
                tables = rest;
                Sequence { num_tokens: span.num_tokens, context_len: span.context_len, block_table }
            })
            .collect()
    }
}
