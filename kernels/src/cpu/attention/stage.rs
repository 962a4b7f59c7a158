//! Brings the keys and values of a split to where [`split`] reads them: in the pages, where they are stored as they are
//! read, else in temporary memory.

use super::plan::{Plan, Unit};
use super::split::{self, Elements, F32Pages, Output, SPLIT, Source};
use crate::cpu::scratch;
use crate::cpu::simd::Simd;

/// Computes a split of a unit. `positions` are the workspace's.
#[inline(always)]
pub(super) fn run<S: Simd, E: Elements>(
    plan: &Plan<'_>,
    (pages, positions): (E, &[u32]),
    unit: Unit,
    split: usize,
    out: Output<'_>,
) {
    let (hd, vd) = (plan.shape().head_dim, plan.shape().value_dim);
    let paged = Paged { plan, unit, base: split * SPLIT, pages };
    if plan.selected.is_some() {
        let mut buffer = scratch::take(SPLIT * (hd + vd));
        let (keys, values) = buffer.split_at_mut(SPLIT * hd);
        let (first, count) = unit.positions;
        let end = count.min(paged.base + SPLIT);
        paged.gather(&positions[first + paged.base..first + end], keys, values);
        let staged = Staged { keys: F32Pages(keys), values: F32Pages(values), width: vd };
        split::run::<S, _>(plan, staged, unit, split, out);
    } else if plan.layout.values_in_keys {
        let mut values = scratch::take(SPLIT * vd);
        paged.transpose(plan.visible(unit, unit.first_row + unit.num_rows - 1).end, &mut values);
        let source = StagedValues { paged, values: F32Pages(&values), width: vd };
        split::run::<S, _>(plan, source, unit, split, out);
    } else {
        split::run::<S, _>(plan, paged, unit, split, out);
    }
}

/// In the pages.
#[derive(Clone, Copy)]
pub(super) struct Paged<'a, E> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) unit: Unit,
    /// Position of the first key.
    pub(super) base: usize,
    pub(super) pages: E,
}

impl<E: Elements> Paged<'_, E> {
    /// The page of a position, and the place in it.
    #[inline(always)]
    fn page(&self, position: usize) -> (usize, usize) {
        let size = self.plan.shape().block_size;
        (self.plan.sequences[self.unit.sequence].block_table[position / size] as usize, position % size)
    }

    /// Where the first dimension of the key of a position lies.
    #[inline(always)]
    fn key_at(&self, position: usize) -> usize {
        let (page, place) = self.page(position);
        self.plan.layout.keys_at(page, self.unit.kv_head) + place
    }

    /// Where the value of a position starts, unless it is in the key.
    #[inline(always)]
    fn value_at(&self, position: usize) -> usize {
        let (page, place) = self.page(position);
        self.plan.layout.values_at(page, self.unit.kv_head) + place * self.plan.shape().value_dim
    }

    /// Copies listed keys to `keys` `[head_dim, 64]` and their values to `values` `[64, value_dim]`.
    #[inline(always)]
    fn gather(&self, positions: &[u32], keys: &mut [f32], values: &mut [f32]) {
        let (shape, in_keys) = (self.plan.shape(), self.plan.layout.values_in_keys);
        for ((j, &position), value) in
            positions.iter().enumerate().zip(values.chunks_exact_mut(shape.value_dim))
        {
            let (key, at) = (self.key_at(position as usize), self.value_at(position as usize));
            for d in 0..shape.head_dim {
                keys[d * SPLIT + j] = self.pages.get(key + d * shape.block_size);
            }
            for (d, value) in value.iter_mut().enumerate() {
                *value = if in_keys { keys[d * SPLIT + j] } else { self.pages.get(at + d) };
            }
        }
    }

    /// Copies the values of the keys up to position `end` to `values` `[64, value_dim]`.
    #[inline(always)]
    fn transpose(&self, end: usize, values: &mut [f32]) {
        let shape = self.plan.shape();
        let positions = self.base..end.min(self.base + SPLIT);
        for (position, value) in positions.zip(values.chunks_exact_mut(shape.value_dim)) {
            let key = self.key_at(position);
            for (d, value) in value.iter_mut().enumerate() {
                *value = self.pages.get(key + d * shape.block_size);
            }
        }
    }
}

impl<E: Elements> Source for Paged<'_, E> {
    type Keys = E;
    type Values = E;

    #[inline(always)]
    fn keys(self) -> E {
        self.pages
    }

    /// 16 keys from a multiple of 16 on are in one page, since 16 divides the block size.
    #[inline(always)]
    fn key_tile(self, start: usize) -> usize {
        self.key_at(self.base + start)
    }

    #[inline(always)]
    fn key_stride(self) -> usize {
        self.plan.shape().block_size
    }

    #[inline(always)]
    fn values(self) -> E {
        self.pages
    }

    #[inline(always)]
    fn value(self, key: usize) -> usize {
        self.value_at(self.base + key)
    }
}

/// Keys in the pages, values in temporary memory.
#[derive(Clone, Copy)]
struct StagedValues<'a, E> {
    paged: Paged<'a, E>,
    values: F32Pages<'a>,
    width: usize,
}

impl<'a, E: Elements> Source for StagedValues<'a, E> {
    type Keys = E;
    type Values = F32Pages<'a>;

    #[inline(always)]
    fn keys(self) -> E {
        self.paged.keys()
    }

    #[inline(always)]
    fn key_tile(self, start: usize) -> usize {
        self.paged.key_tile(start)
    }

    #[inline(always)]
    fn key_stride(self) -> usize {
        self.paged.key_stride()
    }

    #[inline(always)]
    fn values(self) -> F32Pages<'a> {
        self.values
    }

    #[inline(always)]
    fn value(self, key: usize) -> usize {
        key * self.width
    }
}

/// Keys and values in temporary memory.
#[derive(Clone, Copy)]
struct Staged<'a> {
    keys: F32Pages<'a>,
    values: F32Pages<'a>,
    width: usize,
}

impl<'a> Source for Staged<'a> {
    type Keys = F32Pages<'a>;
    type Values = F32Pages<'a>;

    #[inline(always)]
    fn keys(self) -> F32Pages<'a> {
        self.keys
    }

    #[inline(always)]
    fn key_tile(self, start: usize) -> usize {
        start
    }

    #[inline(always)]
    fn key_stride(self) -> usize {
        SPLIT
    }

    #[inline(always)]
    fn values(self) -> F32Pages<'a> {
        self.values
    }

    #[inline(always)]
    fn value(self, key: usize) -> usize {
        key * self.width
    }
}
