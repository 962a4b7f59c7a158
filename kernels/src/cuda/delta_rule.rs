//! The gated delta rule in recurrent form, with per-slot f32 state.

use super::device::Cuda;
use super::element::Element;
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
pub use super::slots::{SlotSequence, Slots};
pub use crate::cpu::delta_rule::{DeltaShape, HeadMap};
use crate::error::{Result, ensure_len, ensure_value};

/// Largest key width.
const MAX_KEY_DIM: usize = 256;

/// Inputs of all rows.
#[derive(Debug, Clone, Copy)]
pub struct DeltaInputs<'a, T> {
    /// `[T, Hk, dk]`, normalised and scaled.
    pub q: View<'a, T>,
    /// `[T, Hk, dk]`, normalised.
    pub k: View<'a, T>,
    /// `[T, Hv, dv]`.
    pub v: View<'a, T>,
    /// Log decay: `[T, Hv]` per head or `[T, Hv, dk]` per channel.
    pub g: View<'a, f32>,
    /// `[T, Hv]`.
    pub beta: View<'a, f32>,
}

/// Per row and value head, with S the head's state `[dk, dv]`:
/// S = exp(g) S; δ = β (v - Sᵀk); S = S + k ⊗ δ; out = Sᵀq.
///
/// `state` is `[slots, Hv, dk, dv]`; a new sequence starts from a zeroed slot. `out` is `[T, Hv, dv]`.
///
/// # Errors
/// A length does not fit, dk is larger than 256, or the sequences were not checked against the slots.
pub fn gated_delta_rule<T: Element>(
    cuda: &Cuda,
    shape: DeltaShape,
    inputs: DeltaInputs<'_, T>,
    sequences: &Slots,
    state: &mut ViewMut<'_, f32>,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    const OP: &str = "gated_delta_rule";
    let DeltaShape { num_key_heads: hk, num_value_heads: hv, key_dim: dk, value_dim: dv, head_map } = shape;
    let grouped = hk > 0 && hv > 0 && hv.is_multiple_of(hk);
    ensure_value(OP, "num_value_heads", hv, grouped, format_args!("a multiple of {hk}"))?;
    let supported = (1..=MAX_KEY_DIM).contains(&dk);
    ensure_value(OP, "key_dim", dk, supported, format_args!("between 1 and {MAX_KEY_DIM}"))?;
    ensure_value(OP, "value_dim", dv, dv > 0, "at least 1")?;
    let slot_len = hv * dk * dv;
    let num_slots = state.len() / slot_len;
    ensure_len(OP, "state", state.len(), num_slots * slot_len)?;
    let (starts, slots) = sequences.views(OP, num_slots)?;
    let rows = sequences.num_rows();
    ensure_len(OP, "q", inputs.q.len(), rows * hk * dk)?;
    ensure_len(OP, "k", inputs.k.len(), rows * hk * dk)?;
    ensure_len(OP, "v", inputs.v.len(), rows * hv * dv)?;
    ensure_len(OP, "beta", inputs.beta.len(), rows * hv)?;
    let per_channel = inputs.g.len() != rows * hv;
    if per_channel {
        ensure_len(OP, "g", inputs.g.len(), rows * hv * dk)?;
    }
    ensure_len(OP, "out", out.len(), rows * hv * dv)?;
    let kernel = match dk {
        ..=64 => T::pick("gated_delta_rule_f32_8", "gated_delta_rule_bf16_8"),
        65..=128 => T::pick("gated_delta_rule_f32_16", "gated_delta_rule_bf16_16"),
        _ => T::pick("gated_delta_rule_f32_32", "gated_delta_rule_bf16_32"),
    };
    let arguments = Arguments::new().view(inputs.q).view(inputs.k).view(inputs.v).view(inputs.g);
    let arguments = arguments.view(inputs.beta).view(starts).view(slots).view_mut(state).view_mut(out);
    let arguments = arguments.int(hk).int(hv).int(dk).int(dv);
    let arguments = arguments.int(usize::from(head_map == HeadMap::Tiled)).int(usize::from(per_channel));
    let grid = Grid::new((dv.div_ceil(32), hv, sequences.num_sequences()), (256, 1));
    // SAFETY: inputs and out have every row; slots differ and lie within the state.
    unsafe { cuda.launch(OP, kernel, grid, arguments) }
}
