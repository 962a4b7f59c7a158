//! What sequences carry from step to step, on the device: paged keys and values, and recurrent states in slots.

use metrale_graph::{KvLayout, StateDecl, StateKind};
use metrale_kernels::cuda::kv_cache::{KvCache, KvShape};
use metrale_kernels::cuda::{Buffer, Cuda, ViewMut};
use metrale_kernels::{KernelError, Result};

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
    /// f32 `[slots, slot_len]`, zero at the start of a sequence.
    Slots { data: Buffer<f32>, slot_len: usize },
}

impl States {
    /// Allocates all states.
    pub(super) fn new(cuda: &Cuda, states: &[StateDecl], sizes: StateSizes) -> Result<Self> {
        let paged = |layout: &KvLayout, num_blocks| {
            let shape = KvShape {
                num_blocks,
                block_size: sizes.block_size,
                num_kv_heads: layout.num_heads,
                head_dim: layout.k_dim,
                value_dim: layout.v_dim,
            };
            KvCache::new(cuda, shape, sizes.kv_dtype)
        };
        let state = |state: &StateDecl| match &state.kind {
            StateKind::Kv(layout) => paged(layout, sizes.num_blocks).map(State::Paged),
            StateKind::Cross(layout) => paged(layout, sizes.num_source_blocks).map(State::Cross),
            StateKind::Recurrent { .. } | StateKind::Conv { .. } => {
                let slot_len = slot_len(&state.kind);
                Ok(State::Slots { data: Buffer::zeroed(cuda, sizes.num_slots * slot_len)?, slot_len })
            }
            StateKind::Tokens { .. } => Err(KernelError::Unsupported {
                op: "state/1",
                reason: format!("the cuda device keeps no token ids, as `{}` asks for", state.name),
            }),
        };
        let kv_element = sizes.kv_dtype.num_bytes();
        Ok(Self { states: states.iter().map(state).collect::<Result<_>>()?, kv_element })
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

    pub(super) fn cache(&self, id: StateId) -> Result<&KvCache> {
        match &self.states[id.0] {
            State::Paged(cache) | State::Cross(cache) => Ok(cache),
            State::Slots { .. } => Err(wrong_kind("attention/1", "pages")),
        }
    }

    pub(super) fn cache_mut(&mut self, id: StateId) -> Result<&mut KvCache> {
        match &mut self.states[id.0] {
            State::Paged(cache) | State::Cross(cache) => Ok(cache),
            State::Slots { .. } => Err(wrong_kind("kv_write/1", "pages")),
        }
    }

    /// `[slots, …]`
    pub(super) fn slots_mut(&mut self, id: StateId) -> Result<ViewMut<'_, f32>> {
        match &mut self.states[id.0] {
            State::Slots { data, .. } => Ok(data.view_mut()),
            State::Paged(_) | State::Cross(_) => Err(wrong_kind("state/1", "slots")),
        }
    }

    /// Fills keys and values with numbers, for runs without a checkpoint.
    pub(super) fn fill_dummy(&mut self, cuda: &Cuda) -> Result<()> {
        self.states.iter_mut().try_for_each(|state| match state {
            State::Paged(cache) => cache.fill_dummy(cuda),
            State::Slots { .. } => Ok(()),
        })
    }

    /// Zeroes the recurrent states of a slot.
    pub(super) fn clear_slot(&mut self, cuda: &Cuda, slot: usize) -> Result<()> {
        for (data, len) in self.slots() {
            data.view_mut().range(slot * len..(slot + 1) * len)?.fill_bytes(cuda, 0)?;
        }
        Ok(())
    }

    /// Copies the recurrent states of a slot to another.
    pub(super) fn copy_slot(&mut self, cuda: &Cuda, from: usize, to: usize) -> Result<()> {
        if from == to {
            return Ok(());
        }
        for (data, len) in self.slots() {
            let mut all = data.view_mut();
            let (mut low, mut high) = all.split(from.max(to) * len)?;
            let first = from.min(to) * len;
            let (mut low, mut high) = (low.range(first..first + len)?, high.range(0..len)?);
            if from < to { high.copy_from(cuda, low.view())? } else { low.copy_from(cuda, high.view())? }
        }
        Ok(())
    }

    /// Copies a page of the rows' keys and values, of every layer.
    pub(super) fn copy_page(&mut self, cuda: &Cuda, from: usize, to: usize) -> Result<()> {
        self.states.iter_mut().try_for_each(|state| match state {
            State::Paged(cache) => cache.copy_block(cuda, from, to),
            State::Cross(_) | State::Slots { .. } => Ok(()),
        })
    }

    fn slots(&mut self) -> impl Iterator<Item = (&mut Buffer<f32>, usize)> {
        self.states.iter_mut().filter_map(|state| match state {
            State::Slots { data, slot_len } => Some((data, *slot_len)),
            State::Paged(_) | State::Cross(_) => None,
        })
    }
}

/// The graph's rules exclude it.
fn wrong_kind(op: &'static str, expected: &str) -> KernelError {
    KernelError::Unsupported { op, reason: format!("the state is not kept in {expected}") }
}
