//! The gated delta rule in recurrent form, with per-slot f32 state.

use super::isa::Kernel;
pub use super::sequence::SlotSequence;
use super::sequence::layout;
use super::shared::SharedSlice;
use super::simd::Simd;
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
/// `state` is `[slots, Hv, dk, dv]`; a new sequence starts from a zeroed slot. `out` is `[T, Hv, dv]`.
///
/// # Errors
/// A length does not fit, or a slot does not exist or is used twice.
pub fn gated_delta_rule(
    cpu: &Cpu,
    shape: DeltaShape,
    inputs: DeltaInputs<'_>,
    sequences: &[SlotSequence],
    state: &mut [f32],
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "gated_delta_rule";
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
    let num_slots = state.len() / slot_len;
    ensure_len(OP, "state", state.len(), num_slots * slot_len)?;
    let (starts, rows) = layout(OP, sequences, num_slots)?;
    ensure_len(OP, "q", inputs.q.len(), rows * hk * dk)?;
    ensure_len(OP, "k", inputs.k.len(), rows * hk * dk)?;
    ensure_len(OP, "v", inputs.v.len(), rows * hv * dv)?;
    ensure_len(OP, "beta", inputs.beta.len(), rows * hv)?;
    if inputs.g.len() != rows * hv {
        ensure_len(OP, "g", inputs.g.len(), rows * hv * dk)?;
    }
    ensure_len(OP, "out", out.len(), rows * hv * dv)?;
    let (state, out) = (SharedSlice::new(state), SharedSlice::new(out));
    cpu.pool().for_each(sequences.len() * hv, 1, |units| {
        for unit in units {
            let (s, head) = (unit / hv, unit % hv);
            let at = (sequences[s].slot * hv + head) * dk * dv;
            // SAFETY: a (slot, head) belongs to one unit; the length was checked.
            let state = unsafe { state.part(at..at + dk * dv) };
            let rows = starts[s]..starts[s] + sequences[s].num_tokens;
            cpu.launch(Head { shape, inputs, head, rows, state, out });
        }
    });
    Ok(())
}

/// One value head of one sequence.
struct Head<'a> {
    shape: DeltaShape,
    inputs: DeltaInputs<'a>,
    head: usize,
    rows: std::ops::Range<usize>,
    state: &'a mut [f32],
    out: SharedSlice<'a, f32>,
}

impl Kernel for Head<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let DeltaShape { num_key_heads: hk, num_value_heads: hv, key_dim: dk, value_dim: dv, head_map } =
            self.shape;
        let key_head = match head_map {
            HeadMap::Grouped => self.head / (hv / hk),
            HeadMap::Tiled => self.head % hk,
        };
        let per_channel = self.inputs.g.len() != self.inputs.beta.len();
        let mut delta = scratch::take(dv);
        {
            for t in self.rows {
                let k = &self.inputs.k[(t * hk + key_head) * dk..][..dk];
                let q = &self.inputs.q[(t * hk + key_head) * dk..][..dk];
                let at = t * hv + self.head;
                let v = &self.inputs.v[at * dv..][..dv];
                let decay = |i: usize| math::exp(self.inputs.g[if per_channel { at * dk + i } else { at }]);
                let shared_decay = decay(0);
                delta.fill(0.0);
                for (i, row) in self.state.chunks_exact_mut(dv).enumerate() {
                    let (a, k) = (if per_channel { decay(i) } else { shared_decay }, k[i]);
                    for (s, m) in row.iter_mut().zip(delta.iter_mut()) {
                        *s *= a;
                        *m += *s * k;
                    }
                }
                let beta = self.inputs.beta[at];
                delta.iter_mut().zip(v).for_each(|(m, v)| *m = beta * (v - *m));
                // SAFETY: (row, head) belongs to this unit; the length was checked.
                let out = unsafe { self.out.part(at * dv..(at + 1) * dv) };
                out.fill(0.0);
                for (i, row) in self.state.chunks_exact_mut(dv).enumerate() {
                    let (k, q) = (k[i], q[i]);
                    for ((s, d), o) in row.iter_mut().zip(delta.iter()).zip(out.iter_mut()) {
                        *s += k * d;
                        *o += *s * q;
                    }
                }
            }
        }
    }
}
