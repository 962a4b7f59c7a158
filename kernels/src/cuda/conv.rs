//! Causal depthwise convolution over time with per-slot state.

use super::device::Cuda;
use super::element::{Element, kernel};
use super::elementwise::{Unary, unary_code};
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
pub use super::slots::{SlotSequence, Slots};
use crate::error::{Result, ensure_len, ensure_value};

/// Most taps.
const MAX_KERNEL: usize = 8;
/// Rows that one thread takes.
const RUN: usize = 32;
/// Threads of a block.
const THREADS: usize = 128;

/// The filter of every channel.
#[derive(Debug, Clone, Copy)]
pub struct Conv1d<'a> {
    /// `[channels, kernel]`; the last tap meets the current input.
    pub weight: View<'a, f32>,
    /// `[channels]`.
    pub bias: Option<View<'a, f32>>,
    /// Taps, 1 to 8.
    pub kernel: usize,
    /// Applied to the result.
    pub activation: Unary,
}

/// `out[t, c] = activation(bias[c] + Σ_i weight[c, i] * x[t - kernel + 1 + i, c])` for x, out `[T, channels]`.
///
/// `state` is `[slots, kernel - 1, channels]`: the last inputs of a slot's sequence, oldest first. It supplies the
/// inputs before a sequence's first row and receives the last ones; a new sequence starts from a zeroed slot.
///
/// # Errors
/// A length does not fit, or the sequences were not checked against the slots.
pub fn causal_conv1d<T: Element>(
    cuda: &Cuda,
    conv: Conv1d<'_>,
    x: View<'_, T>,
    sequences: &Slots,
    state: &mut ViewMut<'_, f32>,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "causal_conv1d";
    let kernel = conv.kernel;
    let supported = (1..=MAX_KERNEL).contains(&kernel);
    ensure_value(OP, "kernel", kernel, supported, format_args!("between 1 and {MAX_KERNEL}"))?;
    let channels = conv.weight.len() / kernel;
    let whole = channels * kernel == conv.weight.len() && channels > 0;
    ensure_value(OP, "weight", conv.weight.len(), whole, "[channels, kernel]")?;
    conv.bias.map_or(Ok(()), |b| ensure_len(OP, "bias", b.len(), channels))?;
    let slot_len = (kernel - 1) * channels;
    let num_slots = state.len().checked_div(slot_len).unwrap_or(usize::from(u16::MAX));
    if slot_len > 0 {
        ensure_len(OP, "state", state.len(), num_slots * slot_len)?;
    }
    let (starts, slots) = sequences.views(OP, num_slots)?;
    ensure_len(OP, "x", x.len(), sequences.num_rows() * channels)?;
    ensure_len(OP, "out", out.len(), x.len())?;
    let arguments = Arguments::new().view(x).view(conv.weight).optional(conv.bias).view(starts).view(slots);
    let arguments = arguments.view_mut(state).view_mut(out);
    let arguments = arguments.int(channels).int(kernel).int(unary_code(conv.activation));
    let runs = sequences.max_tokens().div_ceil(RUN).max(1);
    let grid = Grid::new((channels.div_ceil(THREADS), sequences.num_sequences(), runs), (THREADS, 1));
    // SAFETY: starts end at the rows of x and out; slots differ and lie within the state.
    unsafe { cuda.launch(OP, kernel!(T, "causal_conv1d"), grid, arguments) }
}
