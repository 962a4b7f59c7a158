//! What sequences carry from step to step: paged keys and values, and recurrent states in slots.

use metrale_graph::{KvLayout, StateDecl, StateKind};
use metrale_kernels::KernelError;
use metrale_kernels::cpu::conv::{DraftRows, KeptInputs, SlotState};
use metrale_kernels::cpu::kv_cache::{KvCache, KvShape};

use crate::device::StateSizes;
use crate::device::sizes::slot_len;
use crate::lower::plan::{KvHeads, StateId};

/// All states of a model, by number.
#[derive(Debug)]
pub(super) struct States {
    states: Vec<State>,
    kv_element: usize,
}

#[derive(Debug)]
enum State {
    /// Keys and values of the rows.
    Paged(KvCache),
    /// Keys and values of sources.
    Cross(KvCache),
    /// f32, zero at the start of a sequence.
    Slots(Slots),
}

/// One tensor per slot.
#[derive(Debug)]
struct Slots {
    /// `[slots, slot_len]`
    data: Vec<f32>,
    slot_len: usize,
    /// Inputs of rows that may be taken back, `[slots of sequences, max_drafts, width]`.
    draft_inputs: Vec<f32>,
    max_drafts: usize,
}

impl States {
    /// Allocates all states.
    ///
    /// # Errors
    /// A kind of state or dimensions that the kernels do not support.
    pub(super) fn new(states: &[StateDecl], sizes: StateSizes) -> Result<Self, KernelError> {
        let paged = |layout: &KvLayout, num_blocks| {
            let shape = KvShape {
                num_blocks,
                block_size: sizes.block_size,
                num_kv_heads: layout.num_heads,
                head_dim: layout.k_dim,
                value_dim: layout.v_dim,
            };
            let new = if layout.v_is_k_prefix { KvCache::with_values_in_keys } else { KvCache::new };
            new(shape, sizes.kv_dtype)
        };
        let state = |state: &StateDecl| match &state.kind {
            StateKind::Kv(layout) => paged(layout, sizes.num_blocks).map(State::Paged),
            StateKind::Cross(layout) => paged(layout, sizes.num_source_blocks).map(State::Cross),
            StateKind::Recurrent { .. } | StateKind::Conv { .. } => {
                let slot_len = slot_len(&state.kind);
                let data = vec![0.0; sizes.num_slots * slot_len];
                Ok(State::Slots(Slots { data, slot_len, draft_inputs: Vec::new(), max_drafts: 0 }))
            }
            StateKind::Tokens { .. } => Err(KernelError::Unsupported {
                op: "state/1",
                reason: format!("the cpu device keeps no token ids, as `{}` asks for", state.name),
            }),
        };
        let kv_element = sizes.kv_dtype.num_bytes();
        Ok(Self { states: states.iter().map(state).collect::<Result<_, _>>()?, kv_element })
    }

    /// Heads of a cache.
    pub(super) fn heads(&self, id: StateId) -> Option<KvHeads> {
        let State::Paged(cache) = &self.states[id.0] else { return None };
        let shape = cache.shape();
        Some(KvHeads { count: shape.num_kv_heads, k_dim: shape.head_dim, v_dim: shape.value_dim })
    }

    /// Bytes of a key's or value's element.
    pub(super) fn kv_element(&self) -> usize {
        self.kv_element
    }

    pub(super) fn cache(&self, id: StateId) -> Result<&KvCache, KernelError> {
        match &self.states[id.0] {
            State::Paged(cache) | State::Cross(cache) => Ok(cache),
            State::Slots(_) => Err(wrong_kind("attention/1", "pages")),
        }
    }

    pub(super) fn cache_mut(&mut self, id: StateId) -> Result<&mut KvCache, KernelError> {
        match &mut self.states[id.0] {
            State::Paged(cache) | State::Cross(cache) => Ok(cache),
            State::Slots(_) => Err(wrong_kind("kv_write/1", "pages")),
        }
    }

    /// Room for the inputs of rows that may be taken back: `width` numbers per row change this state.
    pub(super) fn reserve_drafts(&mut self, id: StateId, width: usize, sizes: StateSizes) {
        if let State::Slots(slots) = &mut self.states[id.0] {
            slots.draft_inputs = vec![0.0; sizes.num_seqs * sizes.max_drafts * width];
            slots.max_drafts = sizes.max_drafts;
        }
    }

    /// A recurrent state for a step whose sequences have these drafts; none have any if it is empty.
    pub(super) fn slot_state<'a>(
        &'a mut self,
        id: StateId,
        rows: &'a [DraftRows],
    ) -> Result<SlotState<'a>, KernelError> {
        match &mut self.states[id.0] {
            State::Slots(Slots { data, draft_inputs: inputs, max_drafts, .. }) => Ok(if rows.is_empty() {
                data.as_mut_slice().into()
            } else {
                SlotState::with_drafts(data, KeptInputs { rows, inputs, max_drafts: *max_drafts })
            }),
            State::Paged(_) | State::Cross(_) => Err(wrong_kind("state/1", "slots")),
        }
    }

    /// Zeroes the recurrent states of a slot: a sequence starts.
    ///
    /// # Panics
    /// If there is no such slot.
    pub(super) fn clear_slot(&mut self, slot: usize) {
        for Slots { data, slot_len, .. } in self.slots() {
            data[slot * *slot_len..][..*slot_len].fill(0.0);
        }
    }

    /// Copies the recurrent states of a slot to another.
    ///
    /// # Panics
    /// If there is no such slot.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize) {
        for Slots { data, slot_len, .. } in self.slots() {
            data.copy_within(from * *slot_len..(from + 1) * *slot_len, to * *slot_len);
        }
    }

    /// Copies a page of the rows' keys and values, of every layer.
    ///
    /// # Errors
    /// There is no such page.
    pub(super) fn copy_page(&mut self, from: usize, to: usize) -> Result<(), KernelError> {
        self.states.iter_mut().try_for_each(|state| match state {
            State::Paged(cache) => cache.copy_block(from, to),
            State::Cross(_) | State::Slots(_) => Ok(()),
        })
    }

    fn slots(&mut self) -> impl Iterator<Item = &mut Slots> {
        self.states.iter_mut().filter_map(|state| match state {
            State::Slots(slots) => Some(slots),
            State::Paged(_) | State::Cross(_) => None,
        })
    }
}

/// The graph's rules exclude it.
fn wrong_kind(op: &'static str, expected: &str) -> KernelError {
    KernelError::Unsupported { op, reason: format!("the state is not kept in {expected}") }
}
