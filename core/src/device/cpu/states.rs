//! What sequences carry from step to step: paged keys and values, and recurrent states in slots.

use metrale_graph::{KvLayout, StateDecl, StateKind};
use metrale_kernels::KernelError;
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
    /// Keys and values, of the rows or of sources.
    Paged(KvCache),
    /// f32, zero at the start of a sequence.
    Slots(Slots),
}

/// One tensor per slot.
#[derive(Debug)]
struct Slots {
    /// `[slots, slot_len]`
    data: Vec<f32>,
    slot_len: usize,
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
            KvCache::new(shape, sizes.kv_dtype).map(State::Paged)
        };
        let state = |state: &StateDecl| match &state.kind {
            StateKind::Kv(layout) => paged(layout, sizes.num_blocks),
            StateKind::Cross(layout) => paged(layout, sizes.num_source_blocks),
            StateKind::Recurrent { .. } | StateKind::Conv { .. } => {
                let slot_len = slot_len(&state.kind);
                Ok(State::Slots(Slots { data: vec![0.0; sizes.num_slots * slot_len], slot_len }))
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
            State::Paged(cache) => Ok(cache),
            State::Slots(_) => Err(wrong_kind("attention/1", "pages")),
        }
    }

    pub(super) fn cache_mut(&mut self, id: StateId) -> Result<&mut KvCache, KernelError> {
        match &mut self.states[id.0] {
            State::Paged(cache) => Ok(cache),
            State::Slots(_) => Err(wrong_kind("kv_write/1", "pages")),
        }
    }

    /// `[slots, …]`
    pub(super) fn slots_mut(&mut self, id: StateId) -> Result<&mut [f32], KernelError> {
        match &mut self.states[id.0] {
            State::Slots(slots) => Ok(&mut slots.data),
            State::Paged(_) => Err(wrong_kind("state/1", "slots")),
        }
    }

    /// Zeroes the recurrent states of a slot: a sequence starts.
    ///
    /// # Panics
    /// If there is no such slot.
    pub(super) fn clear_slot(&mut self, slot: usize) {
        for Slots { data, slot_len } in self.slots() {
            data[slot * *slot_len..][..*slot_len].fill(0.0);
        }
    }

    /// Copies the recurrent states of a slot to another.
    ///
    /// # Panics
    /// If there is no such slot.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize) {
        for Slots { data, slot_len } in self.slots() {
            data.copy_within(from * *slot_len..(from + 1) * *slot_len, to * *slot_len);
        }
    }

    fn slots(&mut self) -> impl Iterator<Item = &mut Slots> {
        self.states.iter_mut().filter_map(|state| match state {
            State::Slots(slots) => Some(slots),
            State::Paged(_) => None,
        })
    }
}

/// The graph's rules exclude it.
fn wrong_kind(op: &'static str, expected: &str) -> KernelError {
    KernelError::Unsupported { op, reason: format!("the state is not kept in {expected}") }
}
