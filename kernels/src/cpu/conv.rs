//! Causal depthwise convolution over time with per-slot state.

use super::Cpu;
use super::elementwise::Unary;
use super::isa::Kernel;
pub use super::sequence::SlotSequence;
use super::sequence::layout;
use super::shared::SharedSlice;
use super::simd::Simd;
pub use super::slot_state::{DraftRows, KeptInputs, SlotState};
use crate::error::{Result, ensure_len, ensure_value};

/// Channels of a unit of work.
const CHANNELS: usize = 128;

/// The filter of every channel.
#[derive(Debug, Clone, Copy)]
pub struct Conv1d<'a> {
    /// `[channels, kernel]`; the last tap meets the current input.
    pub weight: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// Taps, at least 1.
    pub kernel: usize,
    /// Applied to the result.
    pub activation: Unary,
}

/// `out[t, c] = activation(bias[c] + Σ_i weight[c, i] * x[t - kernel + 1 + i, c])` for x, out `[T, channels]`.
///
/// `state` is `[slots, kernel - 1, channels]`: the last inputs of a slot's sequence, oldest first. It supplies the
/// inputs before a sequence's first row and receives the last ones; a new sequence starts from a zeroed slot. The kept
/// inputs of a draft row are its `[channels]`.
///
/// # Errors
/// A length does not fit, or a slot does not exist or is used twice.
pub fn causal_conv1d<'a>(
    cpu: &Cpu,
    conv: Conv1d<'_>,
    x: &[f32],
    sequences: &[SlotSequence],
    state: impl Into<SlotState<'a>>,
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "causal_conv1d";
    let mut state = state.into();
    let kernel = conv.kernel;
    ensure_value(OP, "kernel", kernel, kernel > 0, "at least 1")?;
    let channels = conv.weight.len() / kernel;
    ensure_value(
        OP,
        "weight",
        conv.weight.len(),
        channels * kernel == conv.weight.len() && channels > 0,
        "[channels, kernel]",
    )?;
    conv.bias.map_or(Ok(()), |b| ensure_len(OP, "bias", b.len(), channels))?;
    let slot_len = (kernel - 1) * channels;
    let num_slots = state.values.len().checked_div(slot_len).unwrap_or(usize::from(u16::MAX));
    ensure_len(OP, "state", state.values.len(), num_slots * slot_len)?;
    let (starts, rows) = layout(OP, sequences, num_slots)?;
    state.check(OP, sequences, channels)?;
    ensure_len(OP, "x", x.len(), rows * channels)?;
    ensure_len(OP, "out", out.len(), rows * channels)?;
    let (values, drafts) = state.split();
    let (values, out) = (SharedSlice::new(values), SharedSlice::new(out));
    let parts = channels.div_ceil(CHANNELS);
    let grain = if rows * channels < 1 << 12 { parts * sequences.len() } else { 1 };
    cpu.pool().for_each(parts * sequences.len(), grain, |units| {
        for unit in units {
            let (s, part) = (unit / parts, unit % parts);
            let first = part * CHANNELS;
            let count = CHANNELS.min(channels - first);
            let (sequence, num_drafts) = (sequences[s], drafts.of(s).num_drafts);
            let accepted = drafts.accepted(s, sequence.slot, channels);
            let start = starts[s];
            cpu.launch(Job {
                conv,
                x,
                channels,
                first,
                count,
                start,
                sequence,
                accepted,
                num_drafts,
                state: values,
                out,
            });
        }
    });
    state.keep(sequences, &starts, channels, |t, kept| {
        kept.copy_from_slice(&x[t * channels..(t + 1) * channels]);
    });
    Ok(())
}

/// Channels `first..first + count` of one sequence.
struct Job<'a> {
    conv: Conv1d<'a>,
    x: &'a [f32],
    channels: usize,
    first: usize,
    count: usize,
    start: usize,
    sequence: SlotSequence,
    /// `[num_accepted, channels]`
    accepted: &'a [f32],
    num_drafts: usize,
    state: SharedSlice<'a, f32>,
    out: SharedSlice<'a, f32>,
}

impl Kernel for Job<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let past = self.conv.kernel - 1;
        let state_row = |i: usize| {
            let at = (self.sequence.slot * past + i) * self.channels + self.first;
            // SAFETY: the row lies in the state, whose length was checked; slots and channels are this job's own.
            unsafe { self.state.part(at..at + self.count) }
        };
        // The state takes in the first `num_rows` of `rows`, which follow it.
        let advance = |rows: &[f32], num_rows: usize| {
            for i in 0..if num_rows == 0 { 0 } else { past } {
                if num_rows + i >= past {
                    let at = (num_rows + i - past) * self.channels + self.first;
                    state_row(i).copy_from_slice(&rows[at..at + self.count]);
                } else {
                    state_row(i).copy_from_slice(state_row(i + num_rows));
                }
            }
        };
        let x_row = |t: usize| &self.x[(self.start + t) * self.channels + self.first..][..self.count];
        advance(self.accepted, self.accepted.len() / self.channels);
        for t in 0..self.sequence.num_tokens {
            let at = (self.start + t) * self.channels + self.first;
            // SAFETY: rows and channels are this job's own; the length was checked.
            let out = unsafe { self.out.part(at..at + self.count) };
            match self.conv.bias {
                Some(bias) => out.copy_from_slice(&bias[self.first..self.first + self.count]),
                None => out.fill(0.0),
            }
            for i in 0..=past {
                let input: &[f32] = if t + i >= past { x_row(t + i - past) } else { state_row(t + i) };
                let taps = self.conv.weight[self.first * (past + 1)..].iter().skip(i).step_by(past + 1);
                out.iter_mut().zip(input.iter().zip(taps)).for_each(|(o, (x, w))| *o += x * w);
            }
            self.conv.activation.apply(out);
        }
        advance(&self.x[self.start * self.channels..], self.sequence.num_tokens - self.num_drafts);
    }
}
