//! Cuts projections into units of 16 weight rows x up to 64 rows of x and runs them on the pool.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::super::Cpu;
use super::super::isa::Kernel;
use super::super::simd::Simd;
use super::super::weight::pack::{group_bytes, with_layout};
use super::super::weight::{BLOCK, Format, GROUP_ROWS, View, Weight};
use super::epilogue::Target;
use super::quantize::QuantizedRows;
use super::{float, int8, panel};
use crate::error::Result;

/// Rows of x in a unit.
pub(crate) const CHUNK: usize = 64;
/// Units per thread that a dispatch is cut into, so that a slow thread does not hold up the others.
const PIECES_PER_THREAD: usize = 4;
/// Bytes of weights times rows below which one thread works alone.
const PARALLEL_FROM: usize = 24 * 1024;

/// Which rows a task touches.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    /// Consecutive rows.
    From(usize),
    /// Listed rows.
    List(&'a [u32]),
}

impl Rows<'_> {
    /// The rows after the first `count`.
    #[inline(always)]
    fn from(self, count: usize) -> Self {
        match self {
            Self::From(start) => Self::From(start + count),
            Self::List(list) => Self::List(&list[count..]),
        }
    }

    #[inline(always)]
    fn get(self, i: usize) -> usize {
        match self {
            Self::From(start) => start + i,
            Self::List(list) => list[i] as usize,
        }
    }
}

/// The shared x: f32 and, where a quantised weight wants it, int8.
pub(crate) struct Input<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) num_cols: usize,
    pub(crate) quantized: Option<&'a QuantizedRows>,
}

/// A projection of some rows.
pub(crate) struct Task<'a> {
    weight: Operand<'a>,
    up: Option<Operand<'a>>,
    target: &'a Target<'a>,
    x_rows: Rows<'a>,
    out_rows: Rows<'a>,
    num_rows: usize,
}

#[derive(Clone, Copy)]
struct Operand<'a> {
    weight: &'a Weight,
    view: View<'a>,
}

impl<'a> Operand<'a> {
    fn new(weight: &'a Weight) -> Result<Self> {
        Ok(Self { weight, view: weight.view()? })
    }

    /// Rows of the first group that precede the weight.
    fn skip(&self) -> usize {
        match self.view {
            View::Rows(_) => 0,
            View::Packed { skip, .. } => skip,
        }
    }
}

impl<'a> Task<'a> {
    /// The projection of `num_rows` rows.
    pub(crate) fn new(
        target: &'a Target<'a>,
        x_rows: Rows<'a>,
        out_rows: Rows<'a>,
        num_rows: usize,
    ) -> Result<Self> {
        let weight = Operand::new(target.weight)?;
        let up = target.up().map(Operand::new).transpose()?;
        Ok(Self { weight, up, target, x_rows, out_rows, num_rows })
    }

    /// Whether a packed weight takes part.
    pub(crate) fn reads_packed(&self) -> bool {
        let packed = |operand: &Operand<'_>| matches!(operand.view, View::Packed { .. });
        packed(&self.weight) || self.up.as_ref().is_some_and(packed)
    }

    /// Groups of the weight.
    fn num_groups(&self) -> usize {
        (self.weight.skip() + self.weight.weight.num_rows()).div_ceil(GROUP_ROWS)
    }

    /// A unit is one group and one chunk of rows; the groups of a chunk follow each other.
    fn num_units(&self) -> usize {
        self.num_groups() * self.num_rows.div_ceil(CHUNK)
    }
}

/// Runs all units of all tasks.
///
/// # Safety
/// Row lists index existing rows of the input and of the targets' outputs, no two tasks share an output element, and
/// the input has an int8 copy if it is to be used with quantised weights.
pub(crate) unsafe fn run(cpu: &Cpu, input: &Input<'_>, tasks: &[Task<'_>]) {
    let mut ends = SmallVec::<[usize; 8]>::new();
    let (mut total, mut bytes) = (0, 0);
    for task in tasks {
        total += task.num_units();
        bytes += task.target.weight.num_bytes_read() * task.num_rows;
        ends.push(total);
    }
    let pieces = if bytes < PARALLEL_FROM { 1 } else { cpu.pool().num_threads() * PIECES_PER_THREAD };
    cpu.pool().for_each(total, total.div_ceil(pieces).max(1), |units| {
        cpu.launch(Units { input, tasks, ends: &ends, units });
    });
}

struct Units<'a> {
    input: &'a Input<'a>,
    tasks: &'a [Task<'a>],
    ends: &'a [usize],
    units: std::ops::Range<usize>,
}

impl Kernel for Units<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut task = self.ends.partition_point(|&end| end <= self.units.start);
        for unit in self.units {
            while self.ends[task] <= unit {
                task += 1;
            }
            let first = if task == 0 { 0 } else { self.ends[task - 1] };
            // SAFETY: `tile::run`'s caller promises rows and exclusive outputs; units are distinct.
            unsafe { run_unit::<S>(self.input, &self.tasks[task], unit - first) }
        }
    }
}

/// # Safety
/// As [`run`], in a function that has the level's features.
#[inline(always)]
unsafe fn run_unit<S: Simd>(input: &Input<'_>, task: &Task<'_>, unit: usize) {
    let skip = task.weight.skip();
    let (chunk, group) = (unit / task.num_groups(), unit % task.num_groups());
    let start = (group * GROUP_ROWS).saturating_sub(skip);
    let end = ((group + 1) * GROUP_ROWS - skip).min(task.weight.weight.num_rows());
    let num_rows = CHUNK.min(task.num_rows - chunk * CHUNK);
    let (x_rows, out_rows) = (task.x_rows.from(chunk * CHUNK), task.out_rows.from(chunk * CHUNK));
    let mut y = [MaybeUninit::<[f32; GROUP_ROWS]>::uninit(); CHUNK];
    let mut up = [MaybeUninit::<[f32; GROUP_ROWS]>::uninit(); CHUNK];
    let (y, up) = (cleared(&mut y[..num_rows]), cleared(&mut up[..num_rows]));
    // SAFETY: the rows exist by the caller's promise.
    unsafe {
        products::<S>(input, task.weight, start..end, x_rows, y);
        if let Some(operand) = task.up {
            products::<S>(input, operand, start..end, x_rows, up);
        }
        for i in 0..num_rows {
            task.target.finish(out_rows.get(i), start, end - start, &y[i], &up[i]);
        }
    }
}

/// Zeros for as many rows as there are, not for a whole chunk: most steps have one.
#[inline(always)]
fn cleared(rows: &mut [MaybeUninit<[f32; GROUP_ROWS]>]) -> &mut [[f32; GROUP_ROWS]] {
    for row in &mut *rows {
        row.write([0.0; GROUP_ROWS]);
    }
    // SAFETY: every element was written.
    unsafe { rows.assume_init_mut() }
}

/// Products of weight rows `rows` (at most 16) with the rows of x; lane 0 is the first of them.
///
/// # Safety
/// The rows of x exist, and the function is inlined into one that has the level's features.
#[inline(always)]
unsafe fn products<S: Simd>(
    input: &Input<'_>,
    operand: Operand<'_>,
    rows: std::ops::Range<usize>,
    x_rows: Rows<'_>,
    out: &mut [[f32; GROUP_ROWS]],
) {
    match operand.view {
        View::Rows(bytes) => {
            let row_bytes = operand.weight.format().row_bytes(input.num_cols);
            let bytes = &bytes[rows.start * row_bytes..rows.end * row_bytes];
            // SAFETY: the bytes are whole rows; the rest is the caller's promise.
            unsafe { float::dot_rows::<S>(operand.weight.format(), bytes, input, |i| x_rows.get(i), out) }
        }
        View::Packed { groups, skip } => {
            let (group, lane) = ((skip + rows.start) / GROUP_ROWS, (skip + rows.start) % GROUP_ROWS);
            // SAFETY: the caller's promise.
            unsafe { group_products::<S>(input, operand.weight.format(), groups, group, x_rows, out) }
            if lane == 0 {
                return;
            }
            // The rows begin inside of a group: move them to lane 0 and take the rest from the next group.
            out.iter_mut().for_each(|lanes| lanes.rotate_left(lane));
            if lane + rows.len() > GROUP_ROWS {
                let mut next = [[0.0; GROUP_ROWS]; CHUNK];
                let next = &mut next[..out.len()];
                // SAFETY: as above.
                unsafe {
                    group_products::<S>(input, operand.weight.format(), groups, group + 1, x_rows, next);
                }
                for (lanes, next) in out.iter_mut().zip(next) {
                    lanes[GROUP_ROWS - lane..].copy_from_slice(&next[..lane]);
                }
            }
        }
    }
}

/// Products of the 16 rows of a packed group.
///
/// # Safety
/// As [`products`].
#[inline(always)]
unsafe fn group_products<S: Simd>(
    input: &Input<'_>,
    format: Format,
    groups: &[u8],
    group: usize,
    x_rows: Rows<'_>,
    out: &mut [[f32; GROUP_ROWS]],
) {
    let len = group_bytes(format, input.num_cols);
    let group = &groups[group * len..][..len];
    let row = |i: usize| x_rows.get(i);
    if let Some(x) = input.quantized {
        let operands = int8::Operands { group, num_blocks: input.num_cols / BLOCK, x };
        // SAFETY: the group has the width of x; the rest is the caller's promise.
        with_layout!(format, L => unsafe { int8::dot_rows::<S, L>(operands, row, out) }, ());
    } else {
        let operands = panel::Operands { group, num_cols: input.num_cols, x: input.x };
        // SAFETY: as above.
        with_layout!(format, L => unsafe { panel::dot_rows::<S, L>(operands, row, out) }, ());
    }
}
