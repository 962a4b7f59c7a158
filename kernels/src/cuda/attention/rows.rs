//! The query rows of a batch and the pages of their sequences.

use super::super::device::Cuda;
use super::super::kv_cache::KvShape;
use super::super::memory::Buffer;
use super::super::staging::Staging;
use super::{OP, Sequence};
use crate::error::{KernelError, Result, ensure_value};

/// Which keys of its sequence a row sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visible {
    /// Those up to its own position; rows are the last positions of the context.
    Causal,
    /// All.
    All,
}

/// The query rows of a batch and the pages of their sequences, on the device.
///
/// Recorded work may be replayed over other contents with as many rows per sequence and contexts that are no longer than
/// the longest one was.
#[derive(Debug)]
pub struct Rows {
    /// Sequence of each row, `[T]`.
    pub(super) sequences: Buffer<u32>,
    /// Keys that each row sees before the window is applied, `[T]`.
    pub(super) ends: Buffer<u32>,
    /// First row of each sequence, then the number of rows, `[num_sequences + 1]`.
    pub(super) starts: Buffer<u32>,
    /// `[num_sequences]`.
    pub(super) contexts: Buffer<u32>,
    /// `[num_sequences, max_blocks]`.
    pub(super) block_tables: Buffer<u32>,
    staging: [Staging<u32>; 5],
    /// Rows of each sequence.
    pub(super) num_tokens: Vec<usize>,
    pub(super) visible: Visible,
    pub(super) num_rows: usize,
    pub(super) max_blocks: usize,
    pub(super) max_context: usize,
    /// Geometry that the tables were checked against.
    pub(super) block_size: usize,
    pub(super) num_blocks: usize,
}

impl Rows {
    /// Room for `capacity` rows and `num_sequences` sequences of up to `max_blocks` pages; holds no rows.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(cuda: &Cuda, capacity: usize, num_sequences: usize, max_blocks: usize) -> Result<Self> {
        let tables = num_sequences * max_blocks;
        Ok(Self {
            sequences: Buffer::zeroed(cuda, capacity)?,
            ends: Buffer::zeroed(cuda, capacity)?,
            starts: Buffer::zeroed(cuda, num_sequences + 1)?,
            contexts: Buffer::zeroed(cuda, num_sequences)?,
            block_tables: Buffer::zeroed(cuda, tables)?,
            staging: [
                Staging::new(cuda, capacity)?,
                Staging::new(cuda, capacity)?,
                Staging::new(cuda, num_sequences + 1)?,
                Staging::new(cuda, num_sequences)?,
                Staging::new(cuda, tables)?,
            ],
            num_tokens: Vec::with_capacity(num_sequences),
            visible: Visible::Causal,
            num_rows: 0,
            max_blocks,
            max_context: 0,
            block_size: 0,
            num_blocks: 0,
        })
    }

    /// Replaces the rows. Those of a sequence follow those of the sequence before it.
    ///
    /// # Errors
    /// A block table is too short, too long for the room or names a page that does not exist; a causal sequence has
    /// more rows than its context; there are too many rows or sequences.
    pub fn set(
        &mut self,
        cuda: &Cuda,
        shape: KvShape,
        visible: Visible,
        sequences: &[Sequence<'_>],
    ) -> Result<()> {
        let (mut rows, mut ends, mut tables) = (Vec::new(), Vec::new(), Vec::new());
        let (mut starts, mut contexts) = (vec![0], Vec::new());
        for (index, sequence) in sequences.iter().enumerate() {
            let pages = check(shape, visible, sequence)?;
            let room = self.max_blocks;
            ensure_value(
                OP,
                "block_table",
                pages.len(),
                pages.len() <= room,
                format_args!("at most {room} pages"),
            )?;
            tables.extend_from_slice(pages);
            tables.resize((index + 1) * room, 0);
            let context = sequence.context_len as u32;
            contexts.push(context);
            starts.push((rows.len() + sequence.num_tokens) as u32);
            for row in 0..sequence.num_tokens as u32 {
                rows.push(index as u32);
                ends.push(match visible {
                    Visible::Causal => context - sequence.num_tokens as u32 + row + 1,
                    Visible::All => context,
                });
            }
        }
        self.num_rows = 0;
        let [for_rows, for_ends, for_starts, for_contexts, for_tables] = &mut self.staging;
        for_rows.upload(cuda, &rows, &mut self.sequences.view_mut())?;
        for_ends.upload(cuda, &ends, &mut self.ends.view_mut())?;
        for_starts.upload(cuda, &starts, &mut self.starts.view_mut())?;
        for_contexts.upload(cuda, &contexts, &mut self.contexts.view_mut())?;
        for_tables.upload(cuda, &tables, &mut self.block_tables.view_mut())?;
        self.num_tokens.clear();
        self.num_tokens.extend(sequences.iter().map(|s| s.num_tokens));
        self.num_rows = rows.len();
        self.visible = visible;
        self.max_context = ends.iter().max().map_or(0, |&end| end as usize);
        (self.block_size, self.num_blocks) = (shape.block_size, shape.num_blocks);
        Ok(())
    }

    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.num_rows
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.num_rows == 0
    }

    /// Tiles of up to `rows_per_tile` rows of one sequence.
    pub(super) fn num_tiles(&self, rows_per_tile: usize) -> usize {
        self.num_tokens.iter().map(|n| n.div_ceil(rows_per_tile)).sum()
    }
}

/// Pages that the context of a sequence uses.
fn check<'a>(shape: KvShape, visible: Visible, sequence: &Sequence<'a>) -> Result<&'a [u32]> {
    let context = sequence.context_len;
    ensure_value(OP, "context_len", context, i32::try_from(context).is_ok(), "below 2^31")?;
    if visible == Visible::Causal {
        let enough = context >= sequence.num_tokens;
        let expected = format_args!("at least {} tokens", sequence.num_tokens);
        ensure_value(OP, "context_len", context, enough, expected)?;
    }
    let needed = context.div_ceil(shape.block_size.max(1));
    let found = sequence.block_table.len();
    let Some(pages) = sequence.block_table.get(..needed) else {
        let expected = format!("at least {needed} pages");
        return Err(KernelError::Value { op: OP, argument: "block_table", expected, found });
    };
    let limit = shape.num_blocks;
    match pages.iter().position(|&page| page as usize >= limit) {
        Some(position) => {
            let found = pages[position] as usize;
            Err(KernelError::Index { op: OP, argument: "block_table", position, found, limit })
        }
        None => Ok(pages),
    }
}
