//! Pages for the keys and values of rows that attend among themselves, so that one attention kernel serves all.

use metrale_kernels::Result;
use metrale_kernels::cpu::attention::Sequence;
use metrale_kernels::cuda::Cuda;
use metrale_kernels::cuda::kv_cache::{KvCache, KvDtype, KvShape};

use crate::device::LOCAL_PAGE;
use crate::lower::plan::{ElementType, KvHeads};

/// Pages by shape of keys and values.
#[derive(Debug)]
pub(super) struct LocalPages {
    caches: Vec<(KvHeads, KvCache)>,
}

impl LocalPages {
    /// For `max_rows` rows, counted in whole pages: every sequence begins one.
    pub(super) fn new(cuda: &Cuda, shapes: &[KvHeads], of: ElementType, max_rows: usize) -> Result<Self> {
        let num_blocks = max_rows.div_ceil(LOCAL_PAGE);
        let dtype = match of {
            ElementType::F32 => KvDtype::F32,
            ElementType::BF16 => KvDtype::BF16,
        };
        let cache = |heads: &KvHeads| {
            let KvHeads { count: num_kv_heads, k_dim: head_dim, v_dim: value_dim } = *heads;
            let shape = KvShape { num_blocks, block_size: LOCAL_PAGE, num_kv_heads, head_dim, value_dim };
            Ok((*heads, KvCache::new(cuda, shape, dtype)?))
        };
        Ok(Self { caches: shapes.iter().map(cache).collect::<Result<_>>()? })
    }

    /// The pages of a shape.
    pub(super) fn of(&mut self, heads: KvHeads) -> Option<&mut KvCache> {
        self.caches.iter_mut().find(|(known, _)| *known == heads).map(|(_, cache)| cache)
    }
}

/// Where the rows of a step lie in local pages.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// Of each row.
    pub(super) slots: Vec<u32>,
    /// Page numbers of all sequences: 0, 1, 2, …
    blocks: Vec<u32>,
}

impl Placement {
    pub(super) fn of(sequences: &[Sequence<'_>]) -> Self {
        let mut slots = Vec::new();
        let mut block = 0;
        for sequence in sequences {
            slots.extend((0..sequence.num_tokens).map(|row| (block * LOCAL_PAGE + row) as u32));
            block += sequence.num_tokens.div_ceil(LOCAL_PAGE);
        }
        Self { slots, blocks: (0..block as u32).collect() }
    }

    /// Pages of all sequences.
    pub(super) fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The sequences over their local pages.
    pub(super) fn sequences(&self, sequences: &[Sequence<'_>]) -> Vec<Sequence<'_>> {
        let mut rest = self.blocks.as_slice();
        let local = |sequence: &Sequence<'_>| {
            let (block_table, after) = rest.split_at(sequence.num_tokens.div_ceil(LOCAL_PAGE));
            rest = after;
            Sequence { num_tokens: sequence.num_tokens, context_len: sequence.num_tokens, block_table }
        };
        sequences.iter().map(local).collect()
    }
}
