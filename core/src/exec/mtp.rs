//! The multi-token-prediction head.
//!
//! The first depth drafts: its slots are filled from true hidden states as soon as the trunk has computed them, and the
//! drafts after the first come from feeding its own output back to it. Those speculative slots are written over when the
//! trunk has computed what really stands there.

use super::draft::{DraftBatch, Drafter};
use super::runner::{TEXT_OUTPUT, compute_logits, device_error};
use super::{Batch, BatchSeq, Logits, ModelRunner, Vision, sample};
use crate::device::{Entry, StepContext};
use crate::error::EngineError;

/// What passes from one draft to the next; buffers are reused.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// `[sequences that want another draft]`
    token_ids: Vec<u32>,
    /// The same sequences' rows in the pass before, whose output is fed back.
    rows: Vec<usize>,
    /// Their indices in the batch, and the slots that they fill.
    slots: Vec<(usize, usize)>,
    /// Rows whose logits are wanted: all of them.
    wanted: Vec<usize>,
    logits: Logits,
}

/// The depth that drafts.
const DRAFTER: Entry = Entry::Mtp(0);

impl ModelRunner {
    /// MTP depths that were loaded.
    #[must_use]
    pub fn num_mtp_layers(&self) -> usize {
        self.device.num_mtp_layers()
    }

    /// Runs one MTP depth over slots: row i holds a hidden state (`hidden: [rows, hidden_size]`) and, in `batch`, the
    /// token after it. `num_computed` counts the slots that this depth has seen. Leaves the wanted rows' logits.
    ///
    /// # Errors
    /// There is no such depth, the rows do not fit, or a kernel refuses.
    pub fn mtp(
        &mut self,
        depth: usize,
        batch: &Batch,
        hidden: &[f32],
        logits: &mut Logits,
    ) -> Result<(), EngineError> {
        self.check(batch)?;
        let entry = Entry::Mtp(depth);
        self.device.write_input((entry, "hidden"), batch.num_tokens(), hidden).map_err(device_error)?;
        self.rows.fill(&batch.seqs, self.limits.block_size);
        self.place_rows(&batch.seqs);
        self.run_mtp(entry, &batch.token_ids, &batch.logits_rows, logits)
    }

    /// Rows of an output of an MTP depth after [`ModelRunner::mtp`]: `recycle` is what the next depth is fed with.
    ///
    /// # Errors
    /// The device failed.
    pub fn mtp_output(&self, depth: usize, name: &str, rows: usize) -> Result<Option<Vec<f32>>, EngineError> {
        self.device.read_output(Entry::Mtp(depth), name, rows).map_err(device_error)
    }

    /// Tells where the rows stand that belong to a model that sees images.
    fn place_rows(&mut self, seqs: &[BatchSeq]) {
        if let Some(vision) = &mut self.vision {
            vision.place(seqs);
        }
    }

    /// Runs a depth whose input is filled, over the rows of `self.rows`.
    fn run_mtp(
        &mut self,
        entry: Entry,
        next_ids: &[u32],
        wanted: &[usize],
        logits: &mut Logits,
    ) -> Result<(), EngineError> {
        let context = StepContext {
            rows: next_ids.len(),
            token_ids: next_ids,
            positions: &self.rows.positions,
            slots: &self.rows.slots,
            sequences: &self.rows.sequences(),
            state_slots: &self.rows.state_slots,
            images: self.vision.as_ref().map(Vision::context).unwrap_or_default(),
            logits_rows: wanted,
            ..StepContext::default()
        };
        self.device.run(entry, &context).map_err(device_error)?;
        logits.vocab_size = self.limits.vocab_size;
        compute_logits(&mut *self.device, (entry, "head_in"), wanted, logits)
    }

    /// Refuses a batch that does not follow from the last step.
    fn check_drafts(&self, batch: &DraftBatch) -> Result<(), EngineError> {
        self.check(&batch.slots)?;
        let slots = &batch.slots;
        let fits = slots.num_tokens() == batch.hidden_rows.len()
            && batch.hidden_rows.iter().all(|&row| row < self.num_rows)
            && slots.seqs.len() == batch.num_drafts.len()
            && slots.logits_rows.len() == batch.num_drafts.iter().filter(|n| **n > 0).count()
            && slots.seqs.iter().zip(&batch.num_drafts).all(|(seq, num_drafts)| {
                let len = seq.num_computed + seq.num_tokens + num_drafts.saturating_sub(1);
                *num_drafts <= self.limits.max_num_drafts
                    && len <= seq.block_table.len() * self.limits.block_size
            });
        if fits {
            return Ok(());
        }
        Err(EngineError::Internal(format!(
            "drafts for {} slots after a step of {} rows: hidden states, pages or counts do not fit",
            slots.num_tokens(),
            self.num_rows
        )))
    }

    /// The first drafts, from the trunk's hidden states.
    fn draft_first(&mut self, batch: &DraftBatch, logits: &mut Logits) -> Result<(), EngineError> {
        let (entry, output) = TEXT_OUTPUT;
        let hidden = (entry, output, self.num_rows);
        self.device.feed(hidden, &batch.hidden_rows, (DRAFTER, "hidden")).map_err(device_error)?;
        self.rows.fill(&batch.slots.seqs, self.limits.block_size);
        self.place_rows(&batch.slots.seqs);
        self.run_mtp(DRAFTER, &batch.slots.token_ids, &batch.slots.logits_rows, logits)
    }

    /// The next drafts, from the head's own output of the pass before, which had `num_rows` rows.
    fn draft_again(&mut self, chain: &mut Chain, num_rows: usize) -> Result<(), EngineError> {
        let recycled = (DRAFTER, "recycle", num_rows);
        self.device.feed(recycled, &chain.rows, (DRAFTER, "hidden")).map_err(device_error)?;
        chain.wanted.clear();
        chain.wanted.extend(0..chain.rows.len());
        self.run_mtp(DRAFTER, &chain.token_ids, &chain.wanted, &mut chain.logits)
    }

    fn draft_all(
        &mut self,
        chain: &mut Chain,
        batch: &DraftBatch,
        drafts: &mut Vec<u32>,
    ) -> Result<(), EngineError> {
        drafts.clear();
        drafts.resize(batch.num_drafts.iter().sum(), 0);
        self.draft_first(batch, &mut chain.logits)?;
        let mut num_rows = batch.slots.num_tokens();
        for number in 0.. {
            // Row of the last pass, row of its logits, and place among all drafts of each sequence.
            let (mut wanted, mut at) = (0, 0);
            chain.token_ids.clear();
            chain.rows.clear();
            chain.slots.clear();
            self.rows.clear();
            for (index, (seq, &num_drafts)) in batch.slots.seqs.iter().zip(&batch.num_drafts).enumerate() {
                if num_drafts > number {
                    let token = sample::most_likely(chain.logits.row(wanted));
                    drafts[at + number] = token;
                    if num_drafts > number + 1 {
                        let row = if number == 0 { batch.slots.logits_rows[wanted] } else { wanted };
                        chain.token_ids.push(token);
                        chain.rows.push(row);
                        let slot = seq.num_computed + seq.num_tokens + number;
                        chain.slots.push((index, slot));
                        self.rows.push(&seq.block_table, slot, 1, self.limits.block_size);
                    }
                    wanted += 1;
                }
                at += num_drafts;
            }
            if chain.token_ids.is_empty() {
                return Ok(());
            }
            if let Some(vision) = &mut self.vision {
                vision.place_tokens(&batch.slots.seqs, &chain.slots);
            }
            self.draft_again(chain, num_rows)?;
            num_rows = chain.token_ids.len();
        }
        Ok(())
    }
}

impl Drafter for ModelRunner {
    fn draft(&mut self, batch: &DraftBatch, drafts: &mut Vec<u32>) -> Result<(), EngineError> {
        self.check_drafts(batch)?;
        let mut chain = std::mem::take(&mut self.chain);
        let result = self.draft_all(&mut chain, batch, drafts);
        self.chain = chain;
        result
    }
}
