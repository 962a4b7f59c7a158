//! Paged KV caches of a model, one per attention layer.

use metrale_graph::{KvLayout, StateDecl, StateKind};
use metrale_kernels::KernelError;
use metrale_kernels::cpu::kv_cache::{KvCache, KvDtype, KvShape};

use crate::lower::plan::StateId;

/// All states of a model, by number.
#[derive(Debug, Default)]
pub struct States {
    caches: Vec<KvCache>,
}

fn shape(layout: &KvLayout, block_size: usize, num_blocks: usize) -> KvShape {
    KvShape {
        num_blocks,
        block_size,
        num_kv_heads: layout.num_heads,
        head_dim: layout.k_dim,
        value_dim: layout.v_dim,
    }
}

/// Bytes of KV per token over all layers.
#[must_use]
pub fn kv_bytes_per_token(states: &[StateDecl], dtype: KvDtype) -> usize {
    let of = |state: &StateDecl| match &state.kind {
        StateKind::Kv(l) => l.num_heads * (l.k_dim + l.v_dim) * dtype.num_bytes(),
        _ => 0,
    };
    states.iter().map(of).sum()
}

impl States {
    /// Allocates the caches.
    ///
    /// # Errors
    /// A state that is not a KV cache, or dimensions that the kernels do not support.
    pub fn new(
        states: &[StateDecl],
        dtype: KvDtype,
        block_size: usize,
        num_blocks: usize,
    ) -> Result<Self, KernelError> {
        let cache = |state: &StateDecl| match &state.kind {
            StateKind::Kv(layout) => KvCache::new(shape(layout, block_size, num_blocks), dtype),
            _ => Err(KernelError::Unsupported {
                op: "state/1",
                reason: format!(
                    "the cpu device keeps KV caches only, and `{}` is something else",
                    state.name
                ),
            }),
        };
        Ok(Self { caches: states.iter().map(cache).collect::<Result<_, _>>()? })
    }

    pub(super) fn cache(&self, id: StateId) -> &KvCache {
        &self.caches[id.0]
    }

    pub(super) fn cache_mut(&mut self, id: StateId) -> &mut KvCache {
        &mut self.caches[id.0]
    }
}
