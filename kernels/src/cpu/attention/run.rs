//! Runs the units of a call on all workers and folds their splits.

use super::plan::{Job, Plan, Unit, Workspace};
use super::split::{Elements, Output};
use super::stage;
use crate::cpu::isa::Kernel;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::Simd;
use crate::cpu::{Cpu, math, scratch};

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

pub(super) fn run<E: Elements>(cpu: &Cpu, plan: &Plan<'_>, workspace: &Workspace, pages: E, out: &mut [f32]) {
    out.fill(0.0);
    let Workspace { units, jobs, positions } = workspace;
    let out = SharedSlice::new(out);
    // Fewer units than this leave threads idle or unevenly loaded.
    if units.len() < 4 * cpu.pool().num_threads() && jobs.len() >= 2 * units.len() {
        run_splits(cpu, plan, workspace, pages, out);
        return;
    }
    // Small contexts are not worth waking the workers for.
    let grain = if jobs.len() * plan.shape().head_dim * plan.group() < 512 { units.len() } else { 1 };
    cpu.pool().for_each(units.len(), grain, |range| {
        cpu.launch(Units { plan, pages, positions, units: &units[range], out });
    });
}

/// Runs the splits on all workers and folds them afterwards.
fn run_splits<E: Elements>(
    cpu: &Cpu,
    plan: &Plan<'_>,
    workspace: &Workspace,
    pages: E,
    out: SharedSlice<'_, f32>,
) {
    let Workspace { units, jobs, positions } = workspace;
    let mut partial = scratch::take(jobs.last().map_or(0, |job| job.end));
    let shared = SharedSlice::new(&mut partial);
    cpu.pool().for_each(jobs.len(), jobs.len().div_ceil(4 * cpu.pool().num_threads()), |range| {
        cpu.launch(Splits { plan, pages, positions, jobs: &jobs[range], partial: shared });
    });
    cpu.launch(Fold { plan, units, partial: &mut partial, out });
}

/// Sums and maxima of `n` queries, then their values.
fn parts(state: &mut [f32], n: usize) -> (&mut [f32], &mut [f32], &mut [f32]) {
    let (sums, rest) = state.split_at_mut(n);
    let (maxima, values) = rest.split_at_mut(n);
    (sums, maxima, values)
}

struct Units<'a, E> {
    plan: &'a Plan<'a>,
    pages: E,
    positions: &'a [u32],
    units: &'a [Unit],
    out: SharedSlice<'a, f32>,
}

impl<E: Elements> Kernel for Units<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { plan, pages, positions, units, out } = self;
        let width = plan.shape().value_dim;
        for &unit in units {
            let n = plan.num_queries(unit);
            let mut buffer = scratch::take(2 * n * (width + 2));
            let (state, partial) = buffer.split_at_mut(n * (width + 2));
            state.fill(0.0);
            for split in plan.splits(unit) {
                let (sums, maxima, values) = parts(partial, n);
                let output = Output { sums, maxima, values };
                stage::run::<S, E>(plan, (pages, positions), unit, split, output);
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
    let (n, width) = (plan.num_queries(unit), plan.shape().value_dim);
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

struct Splits<'a, E> {
    plan: &'a Plan<'a>,
    pages: E,
    positions: &'a [u32],
    jobs: &'a [Job],
    partial: SharedSlice<'a, f32>,
}

impl<E: Elements> Kernel for Splits<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { plan, pages, positions, jobs, partial } = self;
        for &Job { unit, split, start, end } in jobs {
            // SAFETY: every job has its own part.
            let partial = unsafe { partial.part(start..end) };
            let (sums, maxima, values) = parts(partial, plan.num_queries(unit));
            let output = Output { sums, maxima, values };
            stage::run::<S, E>(plan, (pages, positions), unit, split, output);
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
        let width = self.plan.shape().value_dim;
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
