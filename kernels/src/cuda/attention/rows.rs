//! The query rows of a batch and the pages of their sequences.

use super::super::device::Cuda;
use super::super::kv_cache::KvShape;
use super::super::lists::{List, Lists};
use super::super::memory::View;
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
/// the longest one was, or than [`Listed::longest`].
#[derive(Debug)]
pub struct Rows {
    own: Option<Own>,
    parts: Option<Parts>,
    /// Rows of each sequence.
    pub(super) num_tokens: Vec<usize>,
    pub(super) visible: Visible,
    pub(super) num_rows: usize,
    /// Keys of the longest context for which work is cut.
    pub(super) longest: usize,
    /// Geometry that the tables were checked against.
    pub(super) block_size: usize,
    pub(super) num_blocks: usize,
}

/// Lists of these rows alone.
#[derive(Debug)]
struct Own {
    lists: Lists,
    num_rows: usize,
    num_sequences: usize,
    max_blocks: usize,
}

#[derive(Debug)]
struct Parts {
    /// Sequence of each row, `[T]`.
    sequences: List,
    /// Keys that each row sees before the window is applied, `[T]`.
    ends: List,
    /// First row of each sequence, then the number of rows, `[num_sequences + 1]`.
    starts: List,
    /// `[num_sequences]`.
    contexts: List,
    /// Where the pages of each sequence start in `tables`, `[num_sequences]`.
    table_starts: List,
    tables: List,
}

/// What kernels read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Views<'a> {
    pub(super) sequences: View<'a, u32>,
    pub(super) ends: View<'a, u32>,
    pub(super) starts: View<'a, u32>,
    pub(super) contexts: View<'a, u32>,
    pub(super) table_starts: View<'a, u32>,
    pub(super) tables: View<'a, u32>,
}

/// Rows among the lists of a step.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// Geometry of the cache.
    pub shape: KvShape,
    /// Which keys the rows see.
    pub visible: Visible,
    /// The sequences, in the order of their rows.
    pub sequences: &'a [Sequence<'a>],
    /// The longest context for which work is cut, if that is not to follow from the sequences.
    pub longest: Option<usize>,
}

impl Rows {
    /// Room for `capacity` rows and `num_sequences` sequences of up to `max_blocks` pages; holds no rows.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(cuda: &Cuda, capacity: usize, num_sequences: usize, max_blocks: usize) -> Result<Self> {
        let len = Self::list_len(capacity, num_sequences) + num_sequences * max_blocks;
        let own = Own { lists: Lists::new(cuda, len)?, num_rows: capacity, num_sequences, max_blocks };
        Ok(Self { own: Some(own), ..Self::empty(Visible::Causal) })
    }

    fn empty(visible: Visible) -> Self {
        Self {
            own: None,
            parts: None,
            num_tokens: Vec::new(),
            visible,
            num_rows: 0,
            longest: 0,
            block_size: 0,
            num_blocks: 0,
        }
    }

    /// Indices that so many rows and sequences take in [`Lists`], tables aside.
    #[must_use]
    pub fn list_len(num_rows: usize, num_sequences: usize) -> usize {
        2 * num_rows + 3 * num_sequences + 1
    }

    /// The rows of a step; usable after [`Lists::upload`], until the next step begins.
    ///
    /// # Errors
    /// A block table is too short or names a page that does not exist; a causal sequence has more rows than its context;
    /// there are too many rows or sequences.
    pub fn listed(lists: &mut Lists, listed: Listed<'_>) -> Result<Self> {
        let Listed { shape, visible, sequences, longest } = listed;
        let (mut rows, mut ends) = (Vec::new(), Vec::new());
        let (mut starts, mut contexts, mut table_starts) = (vec![0], Vec::new(), Vec::new());
        for (index, sequence) in sequences.iter().enumerate() {
            table_starts.push(lists.push_table(check(shape, visible, sequence)?));
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
        let max_context = ends.iter().max().map_or(0, |&end| end as usize);
        let longest = longest.unwrap_or(max_context);
        ensure_value(
            OP,
            "context_len",
            max_context,
            max_context <= longest,
            format_args!("at most {longest}"),
        )?;
        Ok(Self {
            parts: Some(Parts {
                sequences: lists.push(&rows)?,
                ends: lists.push(&ends)?,
                starts: lists.push(&starts)?,
                contexts: lists.push(&contexts)?,
                table_starts: lists.push(&table_starts)?,
                tables: lists.tables(),
            }),
            num_tokens: sequences.iter().map(|s| s.num_tokens).collect(),
            num_rows: rows.len(),
            longest,
            block_size: shape.block_size,
            num_blocks: shape.num_blocks,
            ..Self::empty(visible)
        })
    }

    /// Replaces the rows. Those of a sequence follow those of the sequence before it.
    ///
    /// # Errors
    /// As [`listed`](Self::listed), or a block table is too long for the room.
    pub fn set(
        &mut self,
        cuda: &Cuda,
        shape: KvShape,
        visible: Visible,
        sequences: &[Sequence<'_>],
    ) -> Result<()> {
        let Some(mut own) = self.own.take() else {
            let reason = "rows of a step are made anew for each".to_owned();
            return Err(KernelError::Unsupported { op: OP, reason });
        };
        *self = Self::empty(visible);
        match own.set(cuda, Listed { shape, visible, sequences, longest: None }) {
            Ok(rows) => *self = Self { own: Some(own), ..rows },
            Err(error) => {
                self.own = Some(own);
                return Err(error);
            }
        }
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

    pub(super) fn views(&self) -> Result<Views<'_>> {
        let Some(parts) = &self.parts else {
            return Err(KernelError::Unsupported { op: OP, reason: "no rows were set".to_owned() });
        };
        Ok(Views {
            sequences: parts.sequences.view()?,
            ends: parts.ends.view()?,
            starts: parts.starts.view()?,
            contexts: parts.contexts.view()?,
            table_starts: parts.table_starts.view()?,
            tables: parts.tables.view()?,
        })
    }

    /// Whether every sequence has one row.
    pub(super) fn is_single(&self) -> bool {
        self.num_tokens.iter().all(|&n| n == 1)
    }

    /// Tiles of up to `rows_per_tile` rows of one sequence.
    pub(super) fn num_tiles(&self, rows_per_tile: usize) -> usize {
        self.num_tokens.iter().map(|n| n.div_ceil(rows_per_tile)).sum()
    }
}

impl Own {
    fn set(&mut self, cuda: &Cuda, listed: Listed<'_>) -> Result<Rows> {
        let num_rows: usize = listed.sequences.iter().map(|s| s.num_tokens).sum();
        let num_sequences = listed.sequences.len();
        for (name, found, room) in
            [("rows", num_rows, self.num_rows), ("sequences", num_sequences, self.num_sequences)]
        {
            ensure_value(OP, name, found, found <= room, format_args!("at most {room}"))?;
        }
        for sequence in listed.sequences {
            let pages = check(listed.shape, listed.visible, sequence)?.len();
            let room = self.max_blocks;
            ensure_value(OP, "block_table", pages, pages <= room, format_args!("at most {room} pages"))?;
        }
        self.lists.begin(Rows::list_len(num_rows, num_sequences));
        let rows = Rows::listed(&mut self.lists, listed)?;
        self.lists.upload(cuda)?;
        Ok(rows)
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
