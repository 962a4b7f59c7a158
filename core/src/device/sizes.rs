//! How much memory states take.

use metrale_graph::{KvLayout, StateDecl, StateKind};
use metrale_kernels::cpu::kv_cache::KvDtype;

/// How much of everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSizes {
    /// Element type of keys and values.
    pub kv_dtype: KvDtype,
    /// Tokens per page.
    pub block_size: usize,
    /// Pages for keys and values of the rows.
    pub num_blocks: usize,
    /// Pages for keys and values of sources.
    pub num_source_blocks: usize,
    /// Slots of recurrent state.
    pub num_slots: usize,
    /// Slots of those that sequences work on; the others hold copies.
    pub num_seqs: usize,
    /// Most rows of a sequence in one step that may be taken back.
    pub max_drafts: usize,
}

fn kv_bytes(layout: &KvLayout, dtype: KvDtype) -> usize {
    let v_dim = if layout.v_is_k_prefix { 0 } else { layout.v_dim };
    layout.num_heads * (layout.k_dim + v_dim) * dtype.num_bytes()
}

/// f32 values of a recurrent state per slot.
pub(super) fn slot_len(kind: &StateKind) -> usize {
    match kind {
        StateKind::Recurrent { shape } => shape.iter().product(),
        StateKind::Conv { channels, columns } => channels * columns,
        StateKind::Kv(_) | StateKind::Cross(_) | StateKind::Tokens { .. } => 0,
    }
}

/// Bytes of keys and values per token over all layers.
#[must_use]
pub fn kv_bytes_per_token(states: &[StateDecl], dtype: KvDtype) -> usize {
    let of = |state: &StateDecl| if let StateKind::Kv(l) = &state.kind { kv_bytes(l, dtype) } else { 0 };
    states.iter().map(of).sum()
}

/// Bytes of keys and values per source token over all layers.
#[must_use]
pub fn source_bytes_per_token(states: &[StateDecl], dtype: KvDtype) -> usize {
    let of = |state: &StateDecl| if let StateKind::Cross(l) = &state.kind { kv_bytes(l, dtype) } else { 0 };
    states.iter().map(of).sum()
}

/// Bytes of recurrent state per slot over all layers; 0 for a model that has none.
#[must_use]
pub fn recurrent_bytes_per_slot(states: &[StateDecl]) -> usize {
    states.iter().map(|state| slot_len(&state.kind) * size_of::<f32>()).sum()
}
