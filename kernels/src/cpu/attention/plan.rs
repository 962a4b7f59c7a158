//! How a call is cut into units of work, and these into splits.

use std::ops::Range;

use super::split::SPLIT;
use super::{Attention, Mask, Selected, Sequence};
use crate::cpu::kv_cache::{KvShape, Layout};

/// Query rows of a unit of work.
const ROW_CHUNK: usize = 16;

/// A checked call.
pub(super) struct Plan<'a> {
    pub(super) attention: Attention,
    pub(super) selected: Option<Selected<'a>>,
    pub(super) q: &'a [f32],
    pub(super) layout: Layout,
    pub(super) sequences: &'a [Sequence<'a>],
}

/// How a call is cut up; kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(super) units: Vec<Unit>,
    pub(super) jobs: Vec<Job>,
    /// Positions that units see, one list after the other, each ascending.
    pub(super) positions: Vec<u32>,
}

/// Query rows of one sequence for one kv head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit {
    pub(super) sequence: usize,
    pub(super) kv_head: usize,
    /// First query row of the sequence in the batch.
    pub(super) start: usize,
    /// Rows within the sequence; one if positions are chosen.
    pub(super) first_row: usize,
    pub(super) num_rows: usize,
    /// First of the chosen positions in the workspace, and their number.
    pub(super) positions: (usize, usize),
}

/// A split of a unit, and where its result lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) unit: Unit,
    pub(super) split: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Workspace {
    pub(super) fn cut(&mut self, plan: &Plan<'_>) {
        self.units.clear();
        self.jobs.clear();
        self.positions.clear();
        let row_chunk = if plan.selected.is_some() { 1 } else { ROW_CHUNK };
        let mut start = 0;
        for (index, sequence) in plan.sequences.iter().enumerate() {
            for first_row in (0..sequence.num_tokens).step_by(row_chunk) {
                let num_rows = row_chunk.min(sequence.num_tokens - first_row);
                for kv_head in 0..plan.shape().num_kv_heads {
                    let mut unit =
                        Unit { sequence: index, kv_head, start, first_row, num_rows, positions: (0, 0) };
                    if let Some(selected) = plan.selected {
                        unit.positions = self.choose(plan, selected, unit);
                    }
                    self.units.push(unit);
                }
            }
            start += sequence.num_tokens;
        }
        let mut end = 0;
        for &unit in &self.units {
            for split in plan.splits(unit) {
                let start = end;
                end += plan.num_queries(unit) * (plan.shape().value_dim + 2);
                self.jobs.push(Job { unit, split, start, end });
            }
        }
    }

    /// Lists the positions that the row of a unit sees.
    fn choose(&mut self, plan: &Plan<'_>, selected: Selected<'_>, unit: Unit) -> (usize, usize) {
        let (first, row) = (self.positions.len(), unit.start + unit.first_row);
        let list = if selected.per_head { row * plan.shape().num_kv_heads + unit.kv_head } else { row };
        let visible = plan.masked(unit.sequence, unit.first_row);
        let chosen = &selected.entries[list * selected.num_entries..][..selected.num_entries];
        for &entry in chosen.iter().filter(|entry| **entry >= 0.0) {
            let (start, block) = (entry as usize * selected.block, selected.block);
            let range = start.max(visible.start)..(start + block).min(visible.end);
            self.positions.extend(range.map(|position| position as u32));
        }
        self.positions[first..].sort_unstable();
        // The same entry twice is one entry.
        let mut kept = first;
        for i in first..self.positions.len() {
            if i == first || self.positions[i] != self.positions[kept - 1] {
                self.positions[kept] = self.positions[i];
                kept += 1;
            }
        }
        self.positions.truncate(kept);
        (first, kept - first)
    }
}

impl Plan<'_> {
    pub(super) fn shape(&self) -> KvShape {
        self.layout.shape
    }

    /// Query heads per kv head.
    pub(super) fn group(&self) -> usize {
        self.attention.num_heads / self.shape().num_kv_heads
    }

    /// Keys that row `row` of a unit's sequence sees: positions, or places in the unit's list of positions.
    pub(super) fn visible(&self, unit: Unit, row: usize) -> Range<usize> {
        if self.selected.is_some() { 0..unit.positions.1 } else { self.masked(unit.sequence, row) }
    }

    /// Positions that the mask lets row `row` of a sequence see.
    fn masked(&self, sequence: usize, row: usize) -> Range<usize> {
        let s = &self.sequences[sequence];
        match self.attention.mask {
            Mask::Full => 0..s.context_len,
            Mask::Causal { window } => {
                let end = s.context_len - s.num_tokens + row + 1;
                end - window.unwrap_or(end).min(end)..end
            }
        }
    }

    /// Splits that any row of the unit sees.
    pub(super) fn splits(&self, unit: Unit) -> Range<usize> {
        let first = self.visible(unit, unit.first_row);
        let last = self.visible(unit, unit.first_row + unit.num_rows - 1);
        first.start / SPLIT..last.end.div_ceil(SPLIT)
    }

    /// Index of (row, head) of query `i` of a unit; heads of a row follow each other.
    pub(super) fn query(&self, unit: Unit, i: usize) -> (usize, usize) {
        let group = self.group();
        (unit.first_row + i / group, unit.kv_head * group + i % group)
    }

    /// Queries of a unit.
    pub(super) fn num_queries(&self, unit: Unit) -> usize {
        unit.num_rows * self.group()
    }

    /// Offset of a query's row in units of heads.
    pub(super) fn head_index(&self, unit: Unit, i: usize) -> usize {
        let (row, head) = self.query(unit, i);
        (unit.start + row) * self.attention.num_heads + head
    }
}
