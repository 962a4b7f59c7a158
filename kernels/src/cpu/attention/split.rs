//! One split of 64 keys for the queries of a unit: scores, softmax weights and the weighted sum of values.
//!
//! Per query: a score sums over the head's dimensions in order; the weights' sum runs in 16 lanes; each value
//! element sums over the keys in order. Tiles of up to four queries share the loads.

use half::bf16;

use super::plan::{Plan, Unit};
use crate::cpu::simd::Simd;
use crate::cpu::{math, norm};

/// Keys of a split.
pub(super) const SPLIT: usize = 64;
/// Keys that are scored together; divides the block size.
pub(super) const TILE_KEYS: usize = 16;

/// Keys and values of an element type.
pub(super) trait Elements: Copy + Sync {
    /// Loads a vector of elements from `at` on.
    ///
    /// # Safety
    /// The level's features are present and the elements exist.
    unsafe fn load<S: Simd>(self, at: usize) -> S::V;
    /// One element.
    fn get(self, at: usize) -> f32;
}

/// f32 elements.
#[derive(Clone, Copy)]
pub(super) struct F32Pages<'a>(pub(super) &'a [f32]);

impl Elements for F32Pages<'_> {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, at: usize) -> S::V {
        // SAFETY: the caller promises the elements.
        unsafe { S::load(self.0.as_ptr().add(at)) }
    }
    #[inline(always)]
    fn get(self, at: usize) -> f32 {
        self.0[at]
    }
}

/// bf16 elements.
#[derive(Clone, Copy)]
pub(super) struct Bf16Pages<'a>(pub(super) &'a [bf16]);

impl Elements for Bf16Pages<'_> {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, at: usize) -> S::V {
        // SAFETY: the caller promises the elements.
        unsafe { S::load_bf16(self.0.as_ptr().add(at).cast()) }
    }
    #[inline(always)]
    fn get(self, at: usize) -> f32 {
        self.0[at].to_f32()
    }
}

/// Where the keys and values of a split lie, numbered from its first key.
pub(super) trait Source: Copy {
    /// Holds the keys.
    type Keys: Elements;
    /// Holds the values.
    type Values: Elements;
    /// All keys.
    fn keys(self) -> Self::Keys;
    /// Where the first dimension of the 16 keys from `start` on lies; `start` is a multiple of 16.
    fn key_tile(self, start: usize) -> usize;
    /// Elements from one dimension of a key to the next.
    fn key_stride(self) -> usize;
    /// All values.
    fn values(self) -> Self::Values;
    /// Where the value of a key lies.
    fn value(self, key: usize) -> usize;
}

/// Where the results of a unit's queries go.
pub(super) struct Output<'a> {
    pub(super) sums: &'a mut [f32],
    pub(super) maxima: &'a mut [f32],
    pub(super) values: &'a mut [f32],
}

/// Computes the split for all queries of the unit.
#[inline(always)]
pub(super) fn run<S: Simd, P: Source>(plan: &Plan<'_>, source: P, unit: Unit, split: usize, out: Output<'_>) {
    let n = plan.num_queries(unit);
    let width = plan.shape().value_dim;
    let mut first = 0;
    while first < n {
        let count = (n - first).min(4);
        let part = Output {
            sums: &mut out.sums[first..first + count],
            maxima: &mut out.maxima[first..first + count],
            values: &mut out.values[first * width..(first + count) * width],
        };
        match count {
            4 => tile::<S, P, 4>(plan, source, unit, split, first, part),
            3 => tile::<S, P, 3>(plan, source, unit, split, first, part),
            2 => tile::<S, P, 2>(plan, source, unit, split, first, part),
            _ => tile::<S, P, 1>(plan, source, unit, split, first, part),
        }
        first += count;
    }
}

/// Queries `first..first + Q` of the unit.
#[inline(always)]
fn tile<S: Simd, P: Source, const Q: usize>(
    plan: &Plan<'_>,
    source: P,
    unit: Unit,
    split: usize,
    first: usize,
    out: Output<'_>,
) {
    let base = split * SPLIT;
    // Visible keys of each query, relative to the split.
    let ranges: [(usize, usize); Q] = std::array::from_fn(|i| {
        let visible = plan.visible(unit, plan.query(unit, first + i).0);
        let clip = |at: usize| at.clamp(base, base + SPLIT) - base;
        (clip(visible.start), clip(visible.end))
    });
    let end = ranges.iter().map(|r| r.1).max().unwrap_or(0);
    let mut weights = [[0.0f32; SPLIT]; Q];
    for start in (0..end).step_by(TILE_KEYS) {
        // SAFETY: the tile starts below the end of what is visible, so the source has its keys.
        unsafe { scores::<S, P, Q>(plan, source, unit, first, start, &mut weights) }
    }
    for i in 0..Q {
        let (low, high) = ranges[i];
        let (sum, max) = if low < high { weigh(plan, &mut weights[i], low, high) } else { (0.0, 0.0) };
        (out.sums[i], out.maxima[i]) = (sum, max);
    }
    weighted_values::<S, P, Q>(plan.shape().value_dim, source, &ranges, &weights, out.values);
}

/// Raw q · k of the 16 keys from `start` on.
///
/// # Safety
/// The source has these keys, and the level's features are present.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd, P: Source, const Q: usize>(
    plan: &Plan<'_>,
    source: P,
    unit: Unit,
    first: usize,
    start: usize,
    weights: &mut [[f32; SPLIT]; Q],
) {
    let hd = plan.shape().head_dim;
    let (keys, tile, stride) = (source.keys(), source.key_tile(start), source.key_stride());
    let q: [&[f32]; Q] = std::array::from_fn(|i| &plan.q[plan.head_index(unit, first + i) * hd..][..hd]);
    // SAFETY: dimension d of 16 keys lies at tile + d * stride.
    unsafe {
        let mut low = [S::splat(0.0); Q];
        let mut high = [S::splat(0.0); Q];
        for d in 0..hd {
            let at = tile + d * stride;
            let k = keys.load::<S>(at);
            for i in 0..Q {
                low[i] = S::fma(S::splat(*q[i].get_unchecked(d)), k, low[i]);
            }
            if S::LANES < TILE_KEYS {
                let k = keys.load::<S>(at + TILE_KEYS / 2);
                for i in 0..Q {
                    high[i] = S::fma(S::splat(*q[i].get_unchecked(d)), k, high[i]);
                }
            }
        }
        for i in 0..Q {
            let p = weights[i].as_mut_ptr().add(start);
            S::store(p, low[i]);
            if S::LANES < TILE_KEYS {
                S::store(p.add(TILE_KEYS / 2), high[i]);
            }
        }
    }
}

/// Turns raw scores into softmax weights relative to their maximum; zero outside of `low..high`.
#[inline(always)]
fn weigh(plan: &Plan<'_>, weights: &mut [f32; SPLIT], low: usize, high: usize) -> (f32, f32) {
    let scale = plan.attention.scale;
    weights[..low].fill(f32::NEG_INFINITY);
    weights[high..].fill(f32::NEG_INFINITY);
    match plan.attention.softcap {
        None => weights[low..high].iter_mut().for_each(|w| *w *= scale),
        Some(cap) => weights[low..high].iter_mut().for_each(|w| *w = cap * math::tanh(*w * scale / cap)),
    }
    let max = norm::max(weights);
    weights.iter_mut().for_each(|w| *w = math::exp(*w - max));
    (norm::reduce(weights, |w| w), max)
}

/// Σ weight * value over the visible keys of each query, in the order of the keys.
#[inline(always)]
fn weighted_values<S: Simd, P: Source, const Q: usize>(
    width: usize,
    source: P,
    ranges: &[(usize, usize); Q],
    weights: &[[f32; SPLIT]; Q],
    out: &mut [f32],
) {
    let low = ranges.iter().map(|r| r.0).min().unwrap_or(0);
    let high = ranges.iter().map(|r| r.1).max().unwrap_or(0);
    let values = source.values();
    // Where the values of each key start. Keys outside of low..high have none.
    let mut rows = [0usize; SPLIT];
    for (j, row) in rows.iter_mut().enumerate().take(high).skip(low) {
        *row = source.value(j);
    }
    // Keys that all queries see run in tiles; a query's own keys before and after them run alone, in order.
    let common =
        (ranges.iter().map(|r| r.0).max().unwrap_or(0), ranges.iter().map(|r| r.1).min().unwrap_or(0));
    let common = if common.0 < common.1 { common } else { (high, high) };
    let whole = width / S::LANES * S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: a vector of values from `at` on lies within the row of each key in low..high.
        unsafe {
            let mut acc = [S::splat(0.0); Q];
            for i in 0..Q {
                for j in ranges[i].0..ranges[i].1.min(common.0) {
                    acc[i] = S::fma(S::splat(weights[i][j]), values.load::<S>(rows[j] + at), acc[i]);
                }
            }
            for j in common.0..common.1 {
                let v = values.load::<S>(rows[j] + at);
                for i in 0..Q {
                    acc[i] = S::fma(S::splat(weights[i][j]), v, acc[i]);
                }
            }
            for i in 0..Q {
                for j in ranges[i].0.max(common.1)..ranges[i].1 {
                    acc[i] = S::fma(S::splat(weights[i][j]), values.load::<S>(rows[j] + at), acc[i]);
                }
                S::store(out.as_mut_ptr().add(i * width + at), acc[i]);
            }
        }
    }
    for at in whole..width {
        for i in 0..Q {
            let sum = (ranges[i].0..ranges[i].1).map(|j| weights[i][j] * values.get(rows[j] + at)).sum();
            out[i * width + at] = sum;
        }
    }
}
