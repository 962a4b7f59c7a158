//! The gated delta rule in recurrent form, with per-slot f32 state.

use super::isa::Kernel;
pub use super::sequence::SlotSequence;
use super::sequence::layout;
use super::shared::SharedSlice;
use super::simd::Simd;
pub use super::slot_state::{DraftRows, KeptInputs, SlotState};
use super::{Cpu, math, scratch};
use crate::error::{Result, ensure_len, ensure_value};

/// Which key head a value head uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadMap {
    /// h / (Hv / Hk).
    Grouped,
    /// h mod Hk.
    Tiled,
}

/// Head counts and widths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Hk.
    pub num_key_heads: usize,
    /// Hv, a multiple of Hk.
    pub num_value_heads: usize,
    /// dk.
    pub key_dim: usize,
    /// dv.
    pub value_dim: usize,
    /// Key head of a value head.
    pub head_map: HeadMap,
}

/// Inputs of all rows.
#[derive(Debug, Clone, Copy)]
pub struct DeltaInputs<'a> {
    /// `[T, Hk, dk]`, normalised and scaled.
    pub q: &'a [f32],
    /// `[T, Hk, dk]`, normalised.
    pub k: &'a [f32],
    /// `[T, Hv, dv]`.
    pub v: &'a [f32],
    /// Log decay: `[T, Hv]` per head or `[T, Hv, dk]` per channel.
    pub g: &'a [f32],
    /// `[T, Hv]`.
    pub beta: &'a [f32],
}

/// Per row and value head, with S the head's state `[dk, dv]`:
/// S = exp(g) S; δ = β (v - Sᵀk); S = S + k ⊗ δ; out = Sᵀq.
///
/// `state` is `[slots, Hv, dk, dv]`; a new sequence starts from a zeroed slot. `out` is `[T, Hv, dv]`. The kept inputs of a
/// draft row are its k, v, g and β, one after another.
///
/// # Errors
/// A length does not fit, or a slot does not exist or is used twice.
pub fn gated_delta_rule<'a>(
    cpu: &Cpu,
    shape: DeltaShape,
    inputs: DeltaInputs<'_>,
    sequences: &[SlotSequence],
    state: impl Into<SlotState<'a>>,
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "gated_delta_rule";
    let mut state = state.into();
    let DeltaShape { num_key_heads: hk, num_value_heads: hv, key_dim: dk, value_dim: dv, .. } = shape;
    ensure_value(
        OP,
        "num_value_heads",
        hv,
        hk > 0 && hv > 0 && hv.is_multiple_of(hk),
        format_args!("a multiple of {hk}"),
    )?;
    ensure_value(OP, "key_dim", dk, dk > 0, "at least 1")?;
    ensure_value(OP, "value_dim", dv, dv > 0, "at least 1")?;
    let slot_len = hv * dk * dv;
    let num_slots = state.values.len() / slot_len;
    ensure_len(OP, "state", state.values.len(), num_slots * slot_len)?;
    let (starts, rows) = layout(OP, sequences, num_slots)?;
    ensure_len(OP, "q", inputs.q.len(), rows * hk * dk)?;
    ensure_len(OP, "k", inputs.k.len(), rows * hk * dk)?;
    ensure_len(OP, "v", inputs.v.len(), rows * hv * dv)?;
    ensure_len(OP, "beta", inputs.beta.len(), rows * hv)?;
    if inputs.g.len() != rows * hv {
        ensure_len(OP, "g", inputs.g.len(), rows * hv * dk)?;
    }
    ensure_len(OP, "out", out.len(), rows * hv * dv)?;
    let widths = Widths {
        k: hk * dk,
        v: hv * dv,
        g: if inputs.g.len() == rows * hv { hv } else { hv * dk },
        beta: hv,
    };
    state.check(OP, sequences, widths.sum())?;
    let (values, drafts) = state.split();
    let (values, out) = (SharedSlice::new(values), SharedSlice::new(out));
    cpu.pool().for_each(sequences.len() * hv, 1, |units| {
        for unit in units {
            let (s, head) = (unit / hv, unit % hv);
            let sequence = sequences[s];
            let at = (sequence.slot * hv + head) * dk * dv;
            // SAFETY: a (slot, head) belongs to one unit; the length was checked.
            let state = unsafe { values.part(at..at + dk * dv) };
            let accepted = drafts.accepted(s, sequence.slot, widths.sum());
            let (start, num_drafts) = (starts[s], drafts.of(s).num_drafts);
            let (rows, num_kept) = (start..start + sequence.num_tokens, sequence.num_tokens - num_drafts);
            cpu.launch(Head { shape, widths, inputs, head, rows, num_kept, accepted, state, out });
        }
    });
    state.keep(sequences, &starts, widths.sum(), |t, kept| {
        let parts =
            [(inputs.k, widths.k), (inputs.v, widths.v), (inputs.g, widths.g), (inputs.beta, widths.beta)];
        let mut at = 0;
        for (values, width) in parts {
            kept[at..at + width].copy_from_slice(&values[t * width..(t + 1) * width]);
            at += width;
        }
    });
    Ok(())
}

/// Numbers per row of each input.
#[derive(Debug, Clone, Copy)]
struct Widths {
    k: usize,
    v: usize,
    g: usize,
    beta: usize,
}

impl Widths {
    fn sum(self) -> usize {
        self.k + self.v + self.g + self.beta
    }

    /// Cuts a row of kept inputs.
    fn split(self, row: &[f32]) -> [&[f32]; 4] {
        let (k, rest) = row.split_at(self.k);
        let (v, rest) = rest.split_at(self.v);
        let (g, beta) = rest.split_at(self.g);
        [k, v, g, beta]
    }
}

/// One value head of one sequence.
struct Head<'a> {
    shape: DeltaShape,
    widths: Widths,
    inputs: DeltaInputs<'a>,
    head: usize,
    rows: std::ops::Range<usize>,
    /// Rows that change the state; the others are drafts.
    num_kept: usize,
    /// `[num_accepted, widths]`: rows of the last call that come before these.
    accepted: &'a [f32],
    state: &'a mut [f32],
    out: SharedSlice<'a, f32>,
}

/// What one row does to the state of one head.
struct Row<'a> {
    k: &'a [f32],
    v: &'a [f32],
    /// Log decay, of all channels or of each.
    g: &'a [f32],
    beta: f32,
}

impl<'a> Kernel for Head<'a> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let DeltaShape { num_key_heads: hk, num_value_heads: hv, key_dim: dk, value_dim: dv, head_map } =
            self.shape;
        let key_head = match head_map {
            HeadMap::Grouped => self.head / (hv / hk),
            HeadMap::Tiled => self.head % hk,
        };
        let (widths, g_width) = (self.widths, self.widths.g / hv);
        // This head's part of a row of all heads.
        let part = |[k, v, g, beta]: [&'a [f32]; 4]| Row {
            k: &k[key_head * dk..][..dk],
            v: &v[self.head * dv..][..dv],
            g: &g[self.head * g_width..][..g_width],
            beta: beta[self.head],
        };
        let mut delta = scratch::take(dv);
        for kept in self.accepted.chunks_exact(widths.sum()) {
            let row = part(widths.split(kept));
            decay(&row, self.state, &mut delta);
            for (k, state) in row.k.iter().zip(self.state.chunks_exact_mut(dv)) {
                for (s, d) in state.iter_mut().zip(delta.iter()) {
                    *s += k * d;
                }
            }
        }
        let first_draft = self.rows.start + self.num_kept;
        let mut copy = scratch::take(if self.rows.end > first_draft { dk * dv } else { 0 });
        for t in self.rows {
            if t == first_draft {
                copy.copy_from_slice(self.state);
            }
            let state: &mut [f32] = if t < first_draft { &mut *self.state } else { &mut copy };
            let inputs = &self.inputs;
            let row = part([
                &inputs.k[t * widths.k..][..widths.k],
                &inputs.v[t * widths.v..][..widths.v],
                &inputs.g[t * widths.g..][..widths.g],
                &inputs.beta[t * hv..][..hv],
            ]);
            decay(&row, state, &mut delta);
            let q = &inputs.q[(t * hk + key_head) * dk..][..dk];
            let at = (t * hv + self.head) * dv;
            // SAFETY: (row, head) belongs to this unit; the length was checked.
            let out = unsafe { self.out.part(at..at + dv) };
            out.fill(0.0);
            for ((k, q), state) in row.k.iter().zip(q).zip(state.chunks_exact_mut(dv)) {
                for ((s, d), o) in state.iter_mut().zip(delta.iter()).zip(out.iter_mut()) {
                    *s += k * d;
                    *o += *s * q;
                }
            }
        }
    }
}

/// The first half of a row: S = exp(g) S, then δ = β (v - Sᵀk).
#[inline(always)]
fn decay(row: &Row<'_>, state: &mut [f32], delta: &mut [f32]) {
    let shared = math::exp(row.g[0]);
    delta.fill(0.0);
    for (i, state) in state.chunks_exact_mut(delta.len()).enumerate() {
        let (a, k) = (if row.g.len() > 1 { math::exp(row.g[i]) } else { shared }, row.k[i]);
        for (s, m) in state.iter_mut().zip(delta.iter_mut()) {
            *s *= a;
            *m += *s * k;
        }
    }
    delta.iter_mut().zip(row.v).for_each(|(m, v)| *m = row.beta * (v - *m));
}
