//! Attention of queries over paged keys and values.
//!
//! The context of a query is cut into splits of 64 keys from position 0 on. A split yields (max, sum, weighted
//! values); splits are folded in order. That order belongs to the query alone, so the result depends neither on
//! chunking or batching nor on whether splits ran on different threads.

mod split;

use super::Cpu;
use super::isa::Kernel;
use super::kv_cache::{KvCache, KvShape, Pages};
use super::shared::SharedSlice;
use super::simd::Simd;
use super::{math, scratch};
use crate::error::{KernelError, Result, ensure_len, ensure_value};
use split::{Bf16Keys, F32Keys, Keys, SPLIT};

/// Query rows of a unit of work.
const ROW_CHUNK: usize = 16;

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
    const OP: &str = "paged_attention";
    let shape = cache.shape();
    let num_rows = check(attention, shape, sequences)?;
    ensure_len(OP, "q", q.len(), num_rows * attention.num_heads * shape.head_dim)?;
    ensure_len(OP, "out", out.len(), num_rows * attention.num_heads * shape.value_dim)?;
    cpu.with_attention_workspace(|workspace| {
        let plan = Plan { attention, q, shape, sequences };
        workspace.cut(&plan);
        match cache.pages() {
            Pages::F32(pages) => run(cpu, &plan, workspace, F32Keys(pages), out),
            Pages::BF16(pages) => run(cpu, &plan, workspace, Bf16Keys(pages), out),
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

/// A checked call.
pub(crate) struct Plan<'a> {
    attention: Attention,
    q: &'a [f32],
    shape: KvShape,
    sequences: &'a [Sequence<'a>],
}

/// How a call is cut up; kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    units: Vec<Unit>,
    jobs: Vec<Job>,
}

/// Query rows of one sequence for one kv head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unit {
    sequence: usize,
    kv_head: usize,
    /// First query row of the sequence in the batch.
    start: usize,
    /// Rows within the sequence.
    first_row: usize,
    num_rows: usize,
}

/// A split of a unit, and where its result lies.
#[derive(Debug, Clone, Copy)]
struct Job {
    unit: Unit,
    split: usize,
    start: usize,
    end: usize,
}

impl Workspace {
    fn cut(&mut self, plan: &Plan<'_>) {
        self.units.clear();
        self.jobs.clear();
        let mut start = 0;
        for (index, sequence) in plan.sequences.iter().enumerate() {
            for first_row in (0..sequence.num_tokens).step_by(ROW_CHUNK) {
                let num_rows = ROW_CHUNK.min(sequence.num_tokens - first_row);
                let unit = |kv_head| Unit { sequence: index, kv_head, start, first_row, num_rows };
                self.units.extend((0..plan.shape.num_kv_heads).map(unit));
            }
            start += sequence.num_tokens;
        }
        let mut end = 0;
        for &unit in &self.units {
            for split in plan.splits(unit) {
                let start = end;
                end += plan.num_queries(unit) * (plan.shape.value_dim + 2);
                self.jobs.push(Job { unit, split, start, end });
            }
        }
    }
}

impl Plan<'_> {
    /// Query heads per kv head.
    fn group(&self) -> usize {
        self.attention.num_heads / self.shape.num_kv_heads
    }

    /// Keys that row `row` of a sequence sees.
    fn visible(&self, sequence: usize, row: usize) -> std::ops::Range<usize> {
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
    fn splits(&self, unit: Unit) -> std::ops::Range<usize> {
        let first = self.visible(unit.sequence, unit.first_row);
        let last = self.visible(unit.sequence, unit.first_row + unit.num_rows - 1);
        first.start / SPLIT..last.end.div_ceil(SPLIT)
    }

    /// Index of (row, head) of query `i` of a unit; heads of a row follow each other.
    fn query(&self, unit: Unit, i: usize) -> (usize, usize) {
        let group = self.group();
        (unit.first_row + i / group, unit.kv_head * group + i % group)
    }

    /// Queries of a unit.
    fn num_queries(&self, unit: Unit) -> usize {
        unit.num_rows * self.group()
    }

    /// Offset of a query's row in units of heads.
    fn head_index(&self, unit: Unit, i: usize) -> usize {
        let (row, head) = self.query(unit, i);
        (unit.start + row) * self.attention.num_heads + head
    }
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

/// Running result of one query: weighted values, their sum of weights and the largest score. A sum of 0 means that
/// no key was seen.
struct State<'a> {
    values: &'a mut [f32],
    sum: &'a mut f32,
    max: &'a mut f32,
}

impl State<'_> {
    /// Adds the result of the next split.
    #[inline(always)]
    fn fold(self, values: &[f32], sum: f32, max: f32) {
        if sum == 0.0 {
            return;
        }
        if *self.sum == 0.0 {
            self.values.copy_from_slice(values);
            (*self.sum, *self.max) = (sum, max);
            return;
        }
        let largest = if max > *self.max { max } else { *self.max };
        let (old, new) = (math::exp(*self.max - largest), math::exp(max - largest));
        self.values.iter_mut().zip(values).for_each(|(o, v)| *o = *o * old + v * new);
        *self.sum = *self.sum * old + sum * new;
        *self.max = largest;
    }
}

fn run<K: Keys>(cpu: &Cpu, plan: &Plan<'_>, workspace: &Workspace, keys: K, out: &mut [f32]) {
    out.fill(0.0);
    let Workspace { units, jobs } = workspace;
    let out = SharedSlice::new(out);
    // Fewer units than this leave threads idle or unevenly loaded.
    if units.len() < 4 * cpu.pool().num_threads() && jobs.len() >= 2 * units.len() {
        run_splits(cpu, plan, workspace, keys, out);
        return;
    }
    // Small contexts are not worth waking the workers for.
    let grain = if jobs.len() * plan.shape.head_dim * plan.group() < 512 { units.len() } else { 1 };
    cpu.pool().for_each(units.len(), grain, |range| {
        cpu.launch(Units { plan, keys, units: &units[range], out });
    });
}

/// Runs the splits on all workers and folds them afterwards.
fn run_splits<K: Keys>(
    cpu: &Cpu,
    plan: &Plan<'_>,
    workspace: &Workspace,
    keys: K,
    out: SharedSlice<'_, f32>,
) {
    let Workspace { units, jobs } = workspace;
    let mut partial = scratch::take(jobs.last().map_or(0, |job| job.end));
    let shared = SharedSlice::new(&mut partial);
    cpu.pool().for_each(jobs.len(), jobs.len().div_ceil(4 * cpu.pool().num_threads()), |range| {
        cpu.launch(Splits { plan, keys, jobs: &jobs[range], partial: shared });
    });
    cpu.launch(Fold { plan, units, partial: &mut partial, out });
}

/// Sums and maxima of `n` queries, then their values.
fn parts(state: &mut [f32], n: usize) -> (&mut [f32], &mut [f32], &mut [f32]) {
    let (sums, rest) = state.split_at_mut(n);
    let (maxima, values) = rest.split_at_mut(n);
    (sums, maxima, values)
}

struct Units<'a, K> {
    plan: &'a Plan<'a>,
    keys: K,
    units: &'a [Unit],
    out: SharedSlice<'a, f32>,
}

impl<K: Keys> Kernel for Units<'_, K> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { plan, keys, units, out } = self;
        let width = plan.shape.value_dim;
        for &unit in units {
            let n = plan.num_queries(unit);
            let mut buffer = scratch::take(2 * n * (width + 2));
            let (state, partial) = buffer.split_at_mut(n * (width + 2));
            state.fill(0.0);
            for split in plan.splits(unit) {
                let (sums, maxima, values) = parts(partial, n);
                split::run::<S, K>(plan, keys, unit, split, split::Output { sums, maxima, values });
                fold_all(state, partial, n, width);
            }
            // SAFETY: units differ in rows or kv head, so their outputs do not overlap.
            unsafe { finish(plan, unit, state, out) }
        }
    }
}

/// Folds the result of one split of `n` queries into their state.
#[inline(always)]
fn fold_all(state: &mut [f32], partial: &mut [f32], n: usize, width: usize) {
    let (sums, maxima, values) = parts(state, n);
    let (new_sums, new_maxima, new_values) = parts(partial, n);
    for i in 0..n {
        let state =
            State { values: &mut values[i * width..][..width], sum: &mut sums[i], max: &mut maxima[i] };
        state.fold(&new_values[i * width..][..width], new_sums[i], new_maxima[i]);
    }
}

/// Writes values / sum of a unit's queries.
///
/// # Safety
/// Nothing else accesses the outputs of these queries.
#[inline(always)]
unsafe fn finish(plan: &Plan<'_>, unit: Unit, state: &mut [f32], out: SharedSlice<'_, f32>) {
    let (n, width) = (plan.num_queries(unit), plan.shape.value_dim);
    let (sums, _, values) = parts(state, n);
    for i in 0..n {
        if sums[i] == 0.0 {
            continue;
        }
        let factor = 1.0 / sums[i];
        let at = plan.head_index(unit, i) * width;
        // SAFETY: within the output, whose length was checked; exclusive by the caller's promise.
        let out = unsafe { out.part(at..at + width) };
        out.iter_mut().zip(&values[i * width..][..width]).for_each(|(o, v)| *o = v * factor);
    }
}

struct Splits<'a, K> {
    plan: &'a Plan<'a>,
    keys: K,
    jobs: &'a [Job],
    partial: SharedSlice<'a, f32>,
}

impl<K: Keys> Kernel for Splits<'_, K> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for &Job { unit, split, start, end } in self.jobs {
            // SAFETY: every job has its own part.
            let partial = unsafe { self.partial.part(start..end) };
            let (sums, maxima, values) = parts(partial, self.plan.num_queries(unit));
            split::run::<S, K>(self.plan, self.keys, unit, split, split::Output { sums, maxima, values });
        }
    }
}

struct Fold<'a> {
    plan: &'a Plan<'a>,
    units: &'a [Unit],
    partial: &'a mut [f32],
    out: SharedSlice<'a, f32>,
}

impl Kernel for Fold<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = self.plan.shape.value_dim;
        let mut rest = self.partial;
        for &unit in self.units {
            let n = self.plan.num_queries(unit);
            let len = n * (width + 2);
            let mut state = scratch::take(len);
            state.fill(0.0);
            for _ in self.plan.splits(unit) {
                let (partial, after) = std::mem::take(&mut rest).split_at_mut(len);
                fold_all(&mut state, partial, n, width);
                rest = after;
            }
            // SAFETY: one thread folds all units.
            unsafe { finish(self.plan, unit, &mut state, self.out) }
        }
    }
}
