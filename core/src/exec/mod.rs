//! Runs steps: the batch that goes in, the runner that computes it, the logits that come out.

pub mod batch;
pub mod draft;
mod encode;
mod measure;
mod images;
mod mtp;
mod pages;
mod rows;
pub mod runner;
pub mod sample;
mod snapshots;

pub use crate::device::{PartTime, Work};
pub use batch::{Batch, BatchSeq, BatchSource, BlockId, Logits, StateSlot};
pub use draft::{DraftBatch, Drafter};
pub use images::SequenceImages;
pub(crate) use images::Vision;
pub(crate) use mtp::Chain;
pub(crate) use rows::Rows;
pub use runner::ModelRunner;

use crate::error::EngineError;
use crate::ssm::SnapshotSlot;

/// What the scheduler drives: one model on one device.
///
/// `step` never sees a plugin: it runs the lowered plan.
pub trait StepRunner: Send {
    /// Computes all rows of `batch`, writes their KV and state, and leaves the wanted rows' logits in `logits`
    /// (its buffer is reused between steps).
    fn step(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), EngineError>;

    /// The limits that the scheduler must respect.
    fn limits(&self) -> RunnerLimits;

    /// Copies of recurrent state, if the runner can make them. Without, a recurrent model reuses no prefix.
    fn state_snapshots(&mut self) -> Option<&mut dyn StateSnapshots> {
        None
    }

    /// What drafts the tokens after a step, if the model has a part for that and it was loaded.
    fn drafter(&mut self) -> Option<&mut dyn Drafter> {
        None
    }

    /// Copies of KV pages, if the runner can make them. Without, there is no beam search.
    fn page_copies(&mut self) -> Option<&mut dyn PageCopies> {
        None
    }
}

/// Copies KV pages of the rows, all layers of them, between steps.
pub trait PageCopies {
    /// Gives page `to` the content of page `from`.
    fn copy(&mut self, from: BlockId, to: BlockId) -> Result<(), EngineError>;
}

/// Copies the recurrent state of one sequence, all layers of it, between steps.
pub trait StateSnapshots {
    /// Slots that [`save`](Self::save) may use.
    fn num_slots(&self) -> usize;

    /// Keeps the state that `from` has now.
    fn save(&mut self, from: StateSlot, to: SnapshotSlot) -> Result<(), EngineError>;

    /// Makes the state of `to` what it was when `from` was saved. The next step of that sequence starts there.
    fn restore(&mut self, from: SnapshotSlot, to: StateSlot) -> Result<(), EngineError>;
}

/// Fixed sizes of a runner, decided at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Most rows in one step.
    pub max_num_batched_tokens: usize,
    /// Most sequences in one step, and recurrent-state slots.
    pub max_num_seqs: usize,
    /// Longest sequence, prompt and output together.
    pub max_model_len: usize,
    /// Tokens per KV page.
    pub block_size: usize,
    /// KV pages in the pool. Page 0 is never handed out: kernels may use it for padding.
    pub num_blocks: usize,
    /// Logits per row.
    pub vocab_size: usize,
    /// Whether the model keeps recurrent state (prefix reuse then needs a state snapshot at the boundary).
    pub has_recurrent_state: bool,
    /// Most rows of a sequence in one step that may be taken back; 0 if none can.
    pub max_num_drafts: usize,
    /// Limits of sources; `None` for a model without an encoder.
    pub source: Option<SourceLimits>,
}

/// Fixed sizes of what an encoder works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimits {
    /// Longest source.
    pub max_len: usize,
    /// Pages for what decoders see of sources, of `block_size` tokens each. Page 0 is never handed out.
    pub num_blocks: usize,
}
