//! Choosing the positions that sparse attention reads: a light attention of its own scores every key, and each query row
//! keeps the best ones.

use super::plan::{Plan, Unit};
use super::split::{self, Elements, F32Pages, SPLIT, TILE_KEYS};
use super::stage::Paged;
use super::{Attention, Bf16Pages, KvCache, Mask, Pages, Sequence, check};
use crate::cpu::isa::Kernel;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::Simd;
use crate::cpu::{Cpu, scratch};
use crate::error::{Result, ensure_len, ensure_value};

/// What competes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// Positions, one by one.
    Positions,
    /// Blocks of positions, by their best score.
    MaxScores {
        /// Positions per block.
        block: usize,
        /// Blocks up to the row's own that come first.
        local_blocks: usize,
    },
}

/// How positions are scored and chosen: score(j) = Σₕ wₕ * act(scale * qₕ · kⱼ).
#[derive(Debug, Clone, Copy)]
pub struct Indexer {
    /// Query heads.
    pub num_heads: usize,
    /// Entries to choose.
    pub top_k: usize,
    /// Factor of q · k.
    pub scale: f32,
    /// Negative products count as 0.
    pub relu: bool,
    /// Every head chooses for itself; else scores are summed over heads.
    pub per_head: bool,
    /// What competes.
    pub pool: Pool,
}

impl Indexer {
    fn num_lists(&self) -> usize {
        if self.per_head { self.num_heads } else { 1 }
    }
}

/// Chooses for q `[T, num_heads, head_dim]` among the keys of a cache of one kv head, of positions up to each row's own. out
/// is `[T, top_k]`, or `[T, num_heads, top_k]` if `per_head`: positions or blocks as whole numbers, best first, ties to the
/// lower one, -1 for what is left. `head_weights` is `[T, num_heads]`; left out, each head weighs 1.
///
/// # Errors
/// A length or count does not fit, or a block table is too short or names a page that does not exist.
pub fn index(
    cpu: &Cpu,
    indexer: Indexer,
    (q, head_weights): (&[f32], Option<&[f32]>),
    keys: &KvCache,
    sequences: &[Sequence<'_>],
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "index";
    let (heads, shape) = (indexer.num_heads, keys.shape());
    let mask = Mask::Causal { window: None };
    let attention = Attention { num_heads: heads, scale: indexer.scale, mask, softcap: None };
    ensure_value(OP, "num_kv_heads", shape.num_kv_heads, shape.num_kv_heads == 1, "1")?;
    let block = if let Pool::MaxScores { block, .. } = indexer.pool { block } else { 1 };
    ensure_value(OP, "block", block, block > 0, "at least 1")?;
    let num_rows = check(attention, shape, sequences)?;
    ensure_len(OP, "q", q.len(), num_rows * heads * shape.head_dim)?;
    head_weights.map_or(Ok(()), |w| ensure_len(OP, "head_weights", w.len(), num_rows * heads))?;
    let width = indexer.num_lists() * indexer.top_k;
    ensure_len(OP, "out", out.len(), num_rows * width)?;

    let plan = Plan { attention, selected: None, q, layout: keys.layout(), sequences };
    let units = rows(sequences);
    let out = SharedSlice::new(out);
    cpu.pool().for_each(units.len(), 1, |range| {
        let units = &units[range];
        match keys.pages() {
            Pages::F32(pages) => {
                let pages = F32Pages(pages);
                cpu.launch(Rows { plan: &plan, indexer, head_weights, pages, units, out });
            }
            Pages::BF16(pages) => {
                let pages = Bf16Pages(pages);
                cpu.launch(Rows { plan: &plan, indexer, head_weights, pages, units, out });
            }
        }
    });
    Ok(())
}

/// A unit for every query row.
fn rows(sequences: &[Sequence<'_>]) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut start = 0;
    for (sequence, s) in sequences.iter().enumerate() {
        let unit =
            |first_row| Unit { sequence, kv_head: 0, start, first_row, num_rows: 1, positions: (0, 0) };
        units.extend((0..s.num_tokens).map(unit));
        start += s.num_tokens;
    }
    units
}

struct Rows<'a, E> {
    plan: &'a Plan<'a>,
    indexer: Indexer,
    head_weights: Option<&'a [f32]>,
    pages: E,
    units: &'a [Unit],
    out: SharedSlice<'a, f32>,
}

impl<E: Elements> Kernel for Rows<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = self.indexer.num_lists() * self.indexer.top_k;
        for &unit in self.units {
            let row = unit.start + unit.first_row;
            let seen = self.plan.visible(unit, unit.first_row).end;
            let mut scores = scratch::take(self.indexer.num_lists() * seen);
            scores.fill(0.0);
            for first in (0..self.indexer.num_heads).step_by(4) {
                match self.indexer.num_heads - first {
                    1 => self.score::<S, 1>(unit, first, seen, &mut scores),
                    2 => self.score::<S, 2>(unit, first, seen, &mut scores),
                    3 => self.score::<S, 3>(unit, first, seen, &mut scores),
                    _ => self.score::<S, 4>(unit, first, seen, &mut scores),
                }
            }
            // SAFETY: every row has its own part, and the length was checked.
            let out = unsafe { self.out.part(row * width..(row + 1) * width) };
            let lists = scores.chunks_exact_mut(seen.max(1)).zip(out.chunks_exact_mut(self.indexer.top_k));
            lists.for_each(|(scores, out)| choose(self.indexer.pool, scores, out));
        }
    }
}

impl<E: Elements> Rows<'_, E> {
    /// Adds what heads `first..first + Q` say about the first `seen` keys.
    #[inline(always)]
    fn score<S: Simd, const Q: usize>(&self, unit: Unit, first: usize, seen: usize, scores: &mut [f32]) {
        let Self { plan, indexer, .. } = self;
        for base in (0..seen).step_by(SPLIT) {
            let source = Paged { plan, unit, base, pages: self.pages };
            let count = SPLIT.min(seen - base);
            let mut products = [[0.0f32; SPLIT]; Q];
            for start in (0..count).step_by(TILE_KEYS) {
                // SAFETY: the tile starts below the row's own position, so its page is in the block table.
                unsafe { split::scores::<S, _, Q>(plan, source, unit, first, start, &mut products) }
            }
            for (i, products) in products.iter().enumerate() {
                let head = first + i;
                let row = unit.start + unit.first_row;
                let weight = self.head_weights.map_or(1.0, |w| w[row * indexer.num_heads + head]);
                let list = if indexer.per_head { head * seen } else { 0 };
                for (score, product) in scores[list + base..].iter_mut().zip(&products[..count]) {
                    let product = indexer.scale * product;
                    // Not `max`, which would turn NaN into 0.
                    *score += weight * if indexer.relu && product < 0.0 { 0.0 } else { product };
                }
            }
        }
    }
}

/// Writes the best candidates of one list. The scores are those of all positions up to the row's own.
fn choose(pool: Pool, scores: &mut [f32], out: &mut [f32]) {
    let candidates = match pool {
        Pool::Positions => scores,
        Pool::MaxScores { block, local_blocks } => {
            let num_blocks = scores.len().div_ceil(block);
            for b in 0..num_blocks {
                let members = &scores[b * block..scores.len().min((b + 1) * block)];
                scores[b] = members.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            }
            scores[num_blocks - local_blocks.min(num_blocks)..num_blocks].fill(f32::INFINITY);
            &mut scores[..num_blocks]
        }
    };
    // Adding 0 makes -0 equal to 0.
    let better = |a: &u32, b: &u32| {
        let of = |i: u32| candidates[i as usize] + 0.0;
        of(*b).total_cmp(&of(*a)).then(a.cmp(b))
    };
    let mut order: Vec<u32> = (0..candidates.len() as u32).collect();
    if out.len() < order.len() {
        order.select_nth_unstable_by(out.len(), better);
        order.truncate(out.len());
    }
    order.sort_unstable_by(better);
    out.fill(-1.0);
    out.iter_mut().zip(order).for_each(|(out, entry)| *out = entry as f32);
}
