//! Memory of a plan besides activations: what kernels need while they run.

use metrale_kernels::KernelError;
use metrale_kernels::cpu::attention::Sequence;
use metrale_kernels::cpu::kv_cache::{KvCache, KvDtype, KvShape};
use smallvec::SmallVec;

use crate::device::LOCAL_PAGE;
use crate::lower::Plan;
use crate::lower::plan::{KvHeads, Step};

/// Buffers that the launches of a plan share.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// Chosen experts and their weights, `[rows, top_k]` each.
    pub(super) experts: Vec<u32>,
    pub(super) expert_weights: Vec<f32>,
    pub(super) local: Option<LocalPages>,
}

/// Pages for the keys and values of rows that attend among themselves, so that one attention kernel serves all.
#[derive(Debug)]
pub(super) struct LocalPages {
    caches: Vec<(KvHeads, KvCache)>,
    /// Page numbers of all sequences: 0, 1, 2, …
    blocks: Vec<u32>,
    /// Where each row goes.
    slots: Vec<u32>,
}

/// What one launch needs of [`LocalPages`].
pub(super) struct Local<'a> {
    pub(super) cache: &'a mut KvCache,
    pub(super) slots: &'a [u32],
    pub(super) sequences: SmallVec<[Sequence<'a>; 8]>,
}

impl Workspace {
    /// For steps of up to `max_rows` rows.
    pub(super) fn new(plan: &Plan, max_rows: usize) -> Result<Self, KernelError> {
        let mut workspace = Self::default();
        let mut shapes = Vec::new();
        for planned in &plan.steps {
            match &planned.step {
                Step::Moe(moe) => {
                    let len = workspace.experts.len().max(max_rows * moe.top_k);
                    workspace.experts.resize(len, 0);
                    workspace.expert_weights.resize(len, 0.0);
                }
                Step::LocalAttention { shape, .. } if !shapes.contains(shape) => shapes.push(*shape),
                _ => {}
            }
        }
        if !shapes.is_empty() {
            workspace.local = Some(LocalPages::new(&shapes, max_rows)?);
        }
        Ok(workspace)
    }
}

impl LocalPages {
    /// For `max_rows` rows, counted in whole pages: every sequence begins one.
    fn new(shapes: &[KvHeads], max_rows: usize) -> Result<Self, KernelError> {
        let num_blocks = max_rows.div_ceil(LOCAL_PAGE);
        let cache = |heads: &KvHeads| {
            let KvHeads { count: num_kv_heads, k_dim: head_dim, v_dim: value_dim } = *heads;
            let shape = KvShape { num_blocks, block_size: LOCAL_PAGE, num_kv_heads, head_dim, value_dim };
            Ok((*heads, KvCache::new(shape, KvDtype::F32)?))
        };
        let caches = shapes.iter().map(cache).collect::<Result<_, KernelError>>()?;
        Ok(Self { caches, blocks: (0..num_blocks as u32).collect(), slots: Vec::with_capacity(max_rows) })
    }

    /// Lays out the rows of a step.
    ///
    /// # Errors
    /// There are more rows than pages.
    pub(super) fn place(&mut self, sequences: &[Sequence<'_>]) -> Result<(), KernelError> {
        self.slots.clear();
        let mut block = 0;
        for sequence in sequences {
            self.slots.extend((0..sequence.num_tokens).map(|row| (block * LOCAL_PAGE + row) as u32));
            block += sequence.num_tokens.div_ceil(LOCAL_PAGE);
        }
        if block <= self.blocks.len() {
            return Ok(());
        }
        let limit = self.blocks.len();
        Err(KernelError::Unsupported {
            op: "attention/1",
            reason: format!("{block} pages of {LOCAL_PAGE} rows in one step; there are {limit}"),
        })
    }

    /// The pages of a shape, with the sequences that were placed last.
    pub(super) fn of(&mut self, heads: KvHeads, sequences: &[Sequence<'_>]) -> Option<Local<'_>> {
        let (_, cache) = self.caches.iter_mut().find(|(known, _)| *known == heads)?;
        let mut rest = self.blocks.as_slice();
        let local = |sequence: &Sequence<'_>| {
            let (block_table, after) = rest.split_at(sequence.num_tokens.div_ceil(LOCAL_PAGE));
            rest = after;
            Sequence { num_tokens: sequence.num_tokens, context_len: sequence.num_tokens, block_table }
        };
        let sequences = sequences.iter().map(local).collect();
        Some(Local { cache, slots: &self.slots, sequences })
    }
}
