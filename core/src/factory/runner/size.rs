//! Limits, and how much memory the states take.

use metrale_graph::StateDecl;

use super::{BuildError, ModelFacts, RunnerOptions};
use crate::device::{StateSizes, kv_bytes_per_token, recurrent_bytes_per_slot, source_bytes_per_token};
use crate::exec::{RunnerLimits, SourceLimits};

/// Snapshots of recurrent state when the user does not say: as many as fit here, but at most so many.
const DEFAULT_SNAPSHOT_BYTES: usize = 256 << 20;
const DEFAULT_MAX_SNAPSHOTS: usize = 64;

/// What was decided.
pub(super) struct Sizes {
    pub(super) limits: RunnerLimits,
    pub(super) states: StateSizes,
    pub(super) num_snapshots: usize,
    pub(super) kv_cache_bytes: u64,
    pub(super) recurrent_bytes: u64,
}

/// Memory that states may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Bytes in all.
    pub(super) free: u64,
    /// Bytes of KV cache when the user does not say: this, or what one sequence of full length needs.
    pub(super) default_kv: u64,
}

/// What a model keeps per sequence.
pub(super) struct Needs<'a> {
    pub(super) states: &'a [StateDecl],
    pub(super) has_encoder: bool,
    /// What recurrent states need to know of a row that may be taken back, over all layers.
    pub(super) draft_row_bytes: usize,
}

/// Decides limits and sizes of a model.
pub(super) fn size(
    facts: &ModelFacts,
    needs: &Needs<'_>,
    (options, budget): (&RunnerOptions, Budget),
    notes: &mut Vec<String>,
) -> Result<Sizes, BuildError> {
    let recurrent = size_recurrent(needs, options, budget.free)?;
    let left = Budget { free: budget.free.saturating_sub(recurrent.bytes), ..budget };
    let paged = size_pages(facts, needs.states, (options, left), notes)?;
    let source = needs
        .has_encoder
        .then_some(SourceLimits { max_len: paged.max_model_len, num_blocks: paged.num_blocks });
    let limits = RunnerLimits {
        max_num_batched_tokens: options.max_num_batched_tokens.max(options.max_num_seqs),
        max_num_seqs: options.max_num_seqs,
        max_model_len: paged.max_model_len,
        block_size: options.block_size,
        num_blocks: paged.num_blocks,
        vocab_size: facts.vocab_size,
        has_recurrent_state: recurrent.num_slots > 0,
        max_num_drafts: options.max_num_drafts,
        source,
    };
    let states = StateSizes {
        kv_dtype: options.kv_dtype,
        block_size: options.block_size,
        num_blocks: paged.num_blocks,
        num_source_blocks: paged.num_blocks,
        num_slots: recurrent.num_slots,
        num_seqs: options.max_num_seqs,
        max_drafts: options.max_num_drafts,
    };
    Ok(Sizes {
        limits,
        states,
        num_snapshots: recurrent.num_snapshots,
        kv_cache_bytes: paged.bytes,
        recurrent_bytes: recurrent.bytes,
    })
}

/// Slots for the recurrent state of sequences and for snapshots of it.
#[derive(Default)]
struct Recurrent {
    num_slots: usize,
    num_snapshots: usize,
    bytes: u64,
}

fn size_recurrent(needs: &Needs<'_>, options: &RunnerOptions, free: u64) -> Result<Recurrent, BuildError> {
    let slot_bytes = recurrent_bytes_per_slot(needs.states);
    if slot_bytes == 0 {
        return Ok(Recurrent::default());
    }
    let max_num_seqs = options.max_num_seqs;
    let num_snapshots = options
        .num_state_snapshots
        .unwrap_or_else(|| (DEFAULT_SNAPSHOT_BYTES / slot_bytes).min(DEFAULT_MAX_SNAPSHOTS));
    let num_slots = max_num_seqs + num_snapshots;
    let draft_bytes = options.max_num_drafts * needs.draft_row_bytes;
    let snapshot_bytes = num_snapshots as u64 * slot_bytes as u64;
    let seq_bytes = (slot_bytes + draft_bytes) as u64;
    let bytes = max_num_seqs as u64 * seq_bytes + snapshot_bytes;
    if bytes > free {
        let fits = free.saturating_sub(snapshot_bytes) / seq_bytes;
        return Err(BuildError::RecurrentState { max_num_seqs, needed: bytes, available: free, fits });
    }
    Ok(Recurrent { num_slots, num_snapshots, bytes })
}

/// Pages for keys and values.
struct Pages {
    max_model_len: usize,
    num_blocks: usize,
    bytes: u64,
}

/// A page of the rows and one of sources, for a model that has them, are counted together: there are as many of each.
fn size_pages(
    facts: &ModelFacts,
    states: &[StateDecl],
    (options, budget): (&RunnerOptions, Budget),
    notes: &mut Vec<String>,
) -> Result<Pages, BuildError> {
    let (block_size, dtype) = (options.block_size, options.kv_dtype);
    let bytes_per_token = kv_bytes_per_token(states, dtype) + source_bytes_per_token(states, dtype);
    let block_bytes = (bytes_per_token * block_size) as u64;
    let mut max_model_len = options.max_model_len.unwrap_or(facts.context_length);
    let blocks_per_seq = max_model_len.div_ceil(block_size) as u64;
    // Page 0 is never handed out.
    let wanted_blocks = blocks_per_seq.saturating_mul(options.max_num_seqs as u64) + 1;
    if block_bytes == 0 {
        return Ok(Pages { max_model_len, num_blocks: wanted_blocks as usize, bytes: 0 });
    }
    let bytes_for = |tokens: usize| (tokens.div_ceil(block_size) as u64 + 1) * block_bytes;
    let available = options
        .kv_cache_bytes
        .unwrap_or_else(|| budget.default_kv.max(bytes_for(max_model_len)).min(budget.free));
    let fits = ((available / block_bytes).saturating_sub(1) as usize).saturating_mul(block_size);
    if fits < max_model_len {
        if options.max_model_len.is_some() || fits == 0 {
            let needed = bytes_for(max_model_len);
            return Err(BuildError::KvCache { max_model_len, needed, available, fits });
        }
        notes.push(format!("the context is limited to {fits} of the model's {max_model_len} tokens, as many as the KV cache holds"));
        max_model_len = fits;
    }
    let num_blocks = wanted_blocks.min(available / block_bytes) as usize;
    Ok(Pages { max_model_len, num_blocks, bytes: num_blocks as u64 * block_bytes })
}
