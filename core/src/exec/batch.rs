//! The rows of one step: prefill chunks and decode rows of many sequences, side by side.

use std::ops::Range;
use std::sync::Arc;

use metrale_graph::images::PlacedImage;

use super::SequenceImages;
pub use crate::kv::BlockId;
pub use crate::ssm::StateSlot;

/// One sequence's share of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchSeq {
    /// Rows of this sequence in the step, drafts included; at least 1 without them.
    pub num_tokens: usize,
    /// Rows at the end that may be taken back: the next step of this sequence writes over their KV, and recurrent state
    /// takes them in only then, as many as are counted in its `num_accepted`.
    pub num_drafts: usize,
    /// Drafts of this sequence's last step that were right. They are computed, but recurrent state has yet to take them in.
    pub num_accepted: usize,
    /// Tokens of this sequence already in the KV cache: the position of its first row.
    pub num_computed: usize,
    /// Pages of this sequence, in order; they cover `num_computed + num_tokens` tokens.
    pub block_table: Vec<BlockId>,
    /// Where its recurrent state lives. The runner clears it when `num_computed` is 0.
    pub state_slot: StateSlot,
    /// What it translates, for a model with an encoder. The runner encodes it when `num_computed` is 0.
    pub source: Option<BatchSource>,
    /// What its placeholder tokens stand for, for a model with a vision tower.
    pub images: Option<Arc<SequenceImages>>,
}

impl BatchSeq {
    /// Indices of its rows in the sequence.
    pub(super) fn rows(&self) -> Range<usize> {
        self.num_computed..self.num_computed + self.num_tokens
    }

    /// Where its images are.
    pub(super) fn placed_images(&self) -> &[PlacedImage] {
        self.images.as_ref().map_or(&[], |images| &images.placed)
    }
}

/// The source of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSource {
    /// All of its tokens; at least 1.
    pub token_ids: Arc<[u32]>,
    /// Pages for what the decoder sees of it, in order; they cover all its tokens.
    pub block_table: Vec<BlockId>,
}

/// Everything one step needs to know. Rows of a sequence are contiguous, sequences in order of `seqs`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// `[T]` token ids of all rows.
    pub token_ids: Vec<u32>,
    /// The sequences that own the rows; their `num_tokens` add up to `T`.
    pub seqs: Vec<BatchSeq>,
    /// Rows whose logits are wanted, ascending.
    pub logits_rows: Vec<usize>,
}

impl Batch {
    /// Rows of the step.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// The sequence at index `at`, which is at most the number of them, to be filled: empty, with the memory of the
    /// sequence that stood there.
    pub fn reuse_seq(&mut self, at: usize) -> &mut BatchSeq {
        if at == self.seqs.len() {
            self.seqs.push(BatchSeq {
                num_tokens: 0,
                num_drafts: 0,
                num_accepted: 0,
                num_computed: 0,
                block_table: Vec::new(),
                state_slot: StateSlot(0),
                source: None,
                images: None,
            });
        }
        let seq = &mut self.seqs[at];
        seq.block_table.clear();
        seq
    }

    /// Absolute position of every row, `[T]`.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.seqs.iter().flat_map(|s| s.num_computed..s.num_computed + s.num_tokens)
    }
}

/// f32 logits of the wanted rows, `[logits_rows, vocab]`, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logits {
    /// `logits_rows.len() * vocab_size` values.
    pub data: Vec<f32>,
    /// Row width.
    pub vocab_size: usize,
}

impl Logits {
    /// Logits of the `i`-th wanted row.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.vocab_size..(i + 1) * self.vocab_size]
    }
}
