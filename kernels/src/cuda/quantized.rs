//! Products with quantised weights, and their rows as elements.

use super::device::Cuda;
use super::element::Element;
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
use super::weight::{Format, Planes, Weight};
use crate::error::Result;

/// Columns of a block.
pub(super) const BLOCK: usize = 32;
/// Rows of the weight that a thread block takes.
const ROWS_PER_BLOCK: usize = 4;

/// f32 elements of the workspace for `len` activations.
pub(super) fn workspace_len(len: usize) -> usize {
    len / BLOCK * (8 + 2)
}

/// Activations in int8: quants `[T, K]` and (scale, scale * Σ quants) `[T, K / 32]`.
pub(super) struct Activations<'a> {
    quants: ViewMut<'a, f32>,
    scales: ViewMut<'a, f32>,
}

impl<'a> Activations<'a> {
    /// Rounds x, whose rows are whole blocks, into a workspace of [`workspace_len`] elements.
    pub(super) fn round<T: Element>(
        cuda: &Cuda,
        op: &'static str,
        x: View<'_, T>,
        workspace: &'a mut ViewMut<'_, f32>,
    ) -> Result<Self> {
        let num_blocks = x.len() / BLOCK;
        let (quants, scales) = workspace.split(8 * num_blocks)?;
        let arguments = Arguments::new().view(x).view_mut(&quants).view_mut(&scales).size(num_blocks);
        let kernel = T::pick("quantize_f32", "quantize_bf16");
        // SAFETY: a block's quants take 32 bytes and its scales 8, for which the workspace has room.
        unsafe { cuda.launch(op, kernel, Grid::of(num_blocks.div_ceil(8), 256), arguments)? };
        Ok(Self { quants, scales })
    }

    /// The planes of the weight, then all quants and scales.
    pub(super) fn arguments(&self, weight: &Weight) -> Result<Arguments> {
        let arguments = planes(Arguments::new(), weight.planes()?);
        Ok(arguments.view(self.quants.view()).view(self.scales.view()))
    }

    /// One launch for rows `first..first + count` of x, where `count` is 1, 2 or 4. `output` adds the bias, the
    /// residual and the output of these rows.
    pub(super) fn product<O: Element>(
        &self,
        cuda: &Cuda,
        op: &'static str,
        weight: &Weight,
        (first, count): (usize, usize),
        output: impl FnOnce(Arguments) -> Result<Arguments>,
    ) -> Result<()> {
        let blocks = weight.num_cols() / BLOCK;
        let rows = |per_block: usize| first * blocks * per_block..(first + count) * blocks * per_block;
        let arguments = planes(Arguments::new(), weight.planes()?);
        let arguments = arguments.view(self.quants.view().range(rows(8))?);
        let arguments = arguments.view(self.scales.view().range(rows(2))?);
        let arguments = output(arguments)?.int(weight.num_rows()).int(blocks);
        let kernel = product_kernel::<O>(weight.format(), count);
        let grid = Grid::of(weight.num_rows().div_ceil(ROWS_PER_BLOCK), 32 * ROWS_PER_BLOCK);
        // SAFETY: planes, activations and output have these rows; a residual is read by the thread that overwrites it.
        unsafe { cuda.launch(op, kernel, grid, arguments) }
    }
}

/// Writes rows `ids` of the weight, or its first rows without ids, to `out` `[rows, K]`.
pub(super) fn dequantize<T: Element>(
    cuda: &Cuda,
    op: &'static str,
    weight: &Weight,
    ids: Option<View<'_, u32>>,
    out: &ViewMut<'_, T>,
) -> Result<()> {
    const THREADS: usize = 64;
    /// The second dimension of a grid is bounded.
    const ROWS: usize = 1 << 15;
    let blocks = weight.num_cols() / BLOCK;
    let num_rows = out.len() / weight.num_cols();
    for first in (0..num_rows).step_by(ROWS) {
        let count = ROWS.min(num_rows - first);
        let ids = ids.map(|ids| ids.range(first..first + count)).transpose()?;
        let arguments = planes(Arguments::new(), weight.planes()?).optional(ids);
        let arguments = arguments.view_mut(out).size(first).int(blocks);
        let grid = Grid::new((blocks.div_ceil(THREADS), count, 1), (THREADS, 1));
        // SAFETY: the caller's ids are below the weight's rows, of which out has room for as many.
        unsafe { cuda.launch(op, dequantize_kernel::<T>(weight.format()), grid, arguments)? };
    }
    Ok(())
}

fn planes(arguments: Arguments, planes: Planes<'_>) -> Arguments {
    arguments.view(planes.quants).view(planes.high).view(planes.scales).view(planes.supers)
}

/// The name of a kernel for a quantised format.
macro_rules! by_format {
    ($format:expr, $before:literal, $after:literal) => {
        match $format {
            Format::Q4_0 => concat!($before, "q4_0", $after),
            Format::Q4_1 => concat!($before, "q4_1", $after),
            Format::Q5_0 => concat!($before, "q5_0", $after),
            Format::Q5_1 => concat!($before, "q5_1", $after),
            Format::Q4_K => concat!($before, "q4_k", $after),
            Format::Q5_K => concat!($before, "q5_k", $after),
            Format::Q6_K => concat!($before, "q6_k", $after),
            _ => concat!($before, "q8_0", $after),
        }
    };
}

fn product_kernel<O: Element>(format: Format, count: usize) -> &'static str {
    match count {
        1 => O::pick(by_format!(format, "gemv_", "_f32_1"), by_format!(format, "gemv_", "_bf16_1")),
        2 => O::pick(by_format!(format, "gemv_", "_f32_2"), by_format!(format, "gemv_", "_bf16_2")),
        _ => O::pick(by_format!(format, "gemv_", "_f32_4"), by_format!(format, "gemv_", "_bf16_4")),
    }
}

fn dequantize_kernel<T: Element>(format: Format) -> &'static str {
    T::pick(by_format!(format, "dequantize_", "_f32"), by_format!(format, "dequantize_", "_bf16"))
}

pub(super) fn expert_kernel<T: Element>(format: Format) -> &'static str {
    T::pick(by_format!(format, "expert_", "_f32"), by_format!(format, "expert_", "_bf16"))
}
