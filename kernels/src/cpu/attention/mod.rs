//! Attention of queries over paged keys and values.
//!
//! The context of a query is cut into splits of 64 keys from position 0 on. A split yields (max, sum, weighted
//! values); splits are folded in order. That order belongs to the query alone, so the result depends neither on
//! chunking or batching nor on whether splits ran on different threads. Where a query sees chosen positions only, its splits
//! are cut from the list of these.

mod index;
mod plan;
mod run;
mod split;
mod stage;

use super::Cpu;
use super::kv_cache::{KvCache, KvShape, Pages};
use crate::error::{KernelError, Result, ensure_len, ensure_value};
pub use index::{Indexer, Pool, index};
use plan::Plan;
pub(crate) use plan::Workspace;
use split::{Bf16Pages, F32Pages};

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Key j is visible to position i if j <= i and, with a window, i - j < window.
    Causal {
        /// Sliding window in tokens, counting the query itself.
        window: Option<usize>,
    },
    /// Every key of the sequence.
    Full,
}

/// What is the same for all sequences of a call.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Query heads, a multiple of the cache's kv heads.
    pub num_heads: usize,
    /// Factor of q · k.
    pub scale: f32,
    /// Visibility.
    pub mask: Mask,
    /// Scores become cap * tanh(score / cap).
    pub softcap: Option<f32>,
}

/// A sequence of the batch; its query rows follow those of the sequence before it.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Query rows. With a causal mask they are the last `num_tokens` positions of the context.
    pub num_tokens: usize,
    /// Keys in the cache, those of this step included.
    pub context_len: usize,
    /// Page of tokens 0..`block_size`, of the next `block_size`, and so on.
    pub block_table: &'a [u32],
}

/// The positions that each query row sees, within the mask.
#[derive(Debug, Clone, Copy)]
pub struct Selected<'a> {
    /// `[T, num_entries]`, or `[T, num_kv_heads, num_entries]` if `per_head`: whole numbers, negative ones stand for nothing.
    pub entries: &'a [f32],
    /// Entries of a row and head.
    pub num_entries: usize,
    /// Kv heads see positions of their own.
    pub per_head: bool,
    /// Positions of an entry: entry e stands for `e * block..(e + 1) * block`.
    pub block: usize,
}

/// out = softmax(scale * q kᵀ) v for q `[T, num_heads, head_dim]`, out `[T, num_heads, value_dim]`. A query that sees
/// no key gets zeros.
///
/// # Errors
/// A length or count does not fit, or a block table is too short or names a page that does not exist.
pub fn paged(
    cpu: &Cpu,
    attention: Attention,
    q: &[f32],
    cache: &KvCache,
    sequences: &[Sequence<'_>],
    out: &mut [f32],
) -> Result<()> {
    launch(cpu, attention, None, q, cache, sequences, out)
}

/// As [`paged`], over chosen positions.
///
/// # Errors
/// As [`paged`], or the entries are too few or too many.
pub fn paged_selected(
    cpu: &Cpu,
    attention: Attention,
    selected: Selected<'_>,
    q: &[f32],
    cache: &KvCache,
    sequences: &[Sequence<'_>],
    out: &mut [f32],
) -> Result<()> {
    launch(cpu, attention, Some(selected), q, cache, sequences, out)
}

fn launch(
    cpu: &Cpu,
    attention: Attention,
    selected: Option<Selected<'_>>,
    q: &[f32],
    cache: &KvCache,
    sequences: &[Sequence<'_>],
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "paged_attention";
    let shape = cache.shape();
    let num_rows = check(attention, shape, sequences)?;
    ensure_len(OP, "q", q.len(), num_rows * attention.num_heads * shape.head_dim)?;
    ensure_len(OP, "out", out.len(), num_rows * attention.num_heads * shape.value_dim)?;
    if let Some(selected) = selected {
        let lists = num_rows * if selected.per_head { shape.num_kv_heads } else { 1 };
        ensure_len(OP, "entries", selected.entries.len(), lists * selected.num_entries)?;
    }
    cpu.with_attention_workspace(|workspace| {
        let plan = Plan { attention, selected, q, layout: cache.layout(), sequences };
        workspace.cut(&plan);
        match cache.pages() {
            Pages::F32(pages) => run::run(cpu, &plan, workspace, F32Pages(pages), out),
            Pages::BF16(pages) => run::run(cpu, &plan, workspace, Bf16Pages(pages), out),
        }
    });
    Ok(())
}

/// Looks at the counts and at every sequence; returns the number of query rows.
fn check(attention: Attention, shape: KvShape, sequences: &[Sequence<'_>]) -> Result<usize> {
    let heads = attention.num_heads;
    let grouped = heads > 0 && heads.is_multiple_of(shape.num_kv_heads);
    let expected = format_args!("a multiple of {} kv heads", shape.num_kv_heads);
    ensure_value("paged_attention", "num_heads", heads, grouped, expected)?;
    sequences.iter().try_fold(0, |rows, sequence| {
        check_sequence(attention, shape, sequence)?;
        Ok(rows + sequence.num_tokens)
    })
}

fn check_sequence(attention: Attention, shape: KvShape, sequence: &Sequence<'_>) -> Result<()> {
    const OP: &str = "paged_attention";
    let context = sequence.context_len;
    if matches!(attention.mask, Mask::Causal { .. }) {
        let enough = context >= sequence.num_tokens;
        ensure_value(
            OP,
            "context_len",
            context,
            enough,
            format_args!("at least {} tokens", sequence.num_tokens),
        )?;
    }
    let needed = context.div_ceil(shape.block_size);
    let table = sequence.block_table;
    ensure_value(
        OP,
        "block_table",
        table.len(),
        table.len() >= needed,
        format_args!("at least {needed} pages"),
    )?;
    let limit = shape.num_blocks;
    match table[..needed].iter().position(|&block| block as usize >= limit) {
        Some(position) => {
            let found = table[position] as usize;
            Err(KernelError::Index { op: OP, argument: "block_table", position, found, limit })
        }
        None => Ok(()),
    }
}
