//! A runner without a model: tokens are stored in fake pages and read back through block tables.

use std::collections::HashSet;

use metrale_core::EngineError;
use metrale_core::exec::{
    Batch, BatchSeq, BlockId, Logits, PageCopies, RunnerLimits, StateSlot, StateSnapshots, StepRunner,
};
use metrale_core::ssm::SnapshotSlot;

/// The "model": a hash over the history decides all logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FakeModel {
    num_tokens: usize,
    hash: u64,
}

impl FakeModel {
    pub(crate) fn push(&mut self, token: u32) {
        self.num_tokens += 1;
        self.hash = mix(self.hash ^ (u64::from(token) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }

    /// Logits in about -4 to 4, all different.
    pub(crate) fn logits(self, vocab_size: usize) -> impl Iterator<Item = f32> {
        (0..vocab_size as u64).map(move |v| (mix(self.hash ^ mix(v + 1)) >> 40) as f32 / 2_097_152.0 - 4.0)
    }

    /// Greedy continuation, computed without any engine.
    pub(crate) fn greedy(prompt: &[u32], num: usize, vocab_size: usize) -> Vec<u32> {
        let mut model = Self::default();
        for token in prompt {
            model.push(*token);
        }
        (0..num)
            .map(|_| {
                let logits: Vec<f32> = model.logits(vocab_size).collect();
                let best = (0..vocab_size).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
                let token = best.unwrap() as u32;
                model.push(token);
                token
            })
            .collect()
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

type Hook = Box<dyn FnMut(&Batch, &mut Logits) -> Result<(), EngineError> + Send>;

/// Fake pages of (position, token), fake recurrent state, and a hook after each step.
pub(crate) struct FakeRunner {
    limits: RunnerLimits,
    pages: Vec<Vec<Option<(usize, u32)>>>,
    source_pages: Vec<Vec<Option<u32>>>,
    states: Vec<FakeModel>,
    snapshots: Vec<FakeModel>,
    copies_pages: bool,
    hook: Hook,
}

impl FakeRunner {
    pub(crate) fn new(limits: RunnerLimits) -> Self {
        Self {
            limits,
            pages: vec![vec![None; limits.block_size]; limits.num_blocks],
            source_pages: vec![vec![None; limits.block_size]; limits.source.map_or(0, |s| s.num_blocks)],
            states: vec![FakeModel::default(); limits.max_num_seqs],
            snapshots: Vec::new(),
            copies_pages: true,
            hook: Box::new(|_, _| Ok(())),
        }
    }

    pub(crate) fn without_page_copies(mut self) -> Self {
        self.copies_pages = false;
        self
    }

    pub(crate) fn with_snapshots(mut self, num: usize) -> Self {
        self.snapshots = vec![FakeModel::default(); num];
        self
    }

    /// Sees every batch with its logits, may change them, fail, panic or wait.
    pub(crate) fn with_hook(
        mut self,
        hook: impl FnMut(&Batch, &mut Logits) -> Result<(), EngineError> + Send + 'static,
    ) -> Self {
        self.hook = Box::new(hook);
        self
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), EngineError> {
        let num_rows: usize = batch.seqs.iter().map(|s| s.num_tokens).sum();
        ensure(num_rows == batch.num_tokens(), "rows of the sequences do not add up")?;
        ensure(num_rows > 0 && num_rows <= self.limits.max_num_batched_tokens, "too many rows, or none")?;
        ensure(batch.seqs.len() <= self.limits.max_num_seqs, "too many sequences")?;
        ensure(batch.logits_rows.is_sorted_by(|a, b| a < b), "logits rows are not ascending")?;
        let slots: HashSet<StateSlot> = batch.seqs.iter().map(|s| s.state_slot).collect();
        let shares_slots = self.limits.has_recurrent_state && slots.len() < batch.seqs.len();
        ensure(!shares_slots, "two sequences share a state slot")?;
        batch.seqs.iter().try_for_each(|seq| self.check_seq(seq))
    }

    fn check_seq(&self, seq: &BatchSeq) -> Result<(), EngineError> {
        ensure(seq.num_tokens > 0, "a sequence without rows")?;
        let len = seq.num_computed + seq.num_tokens;
        ensure(len <= self.limits.max_model_len, "a sequence is too long")?;
        ensure(seq.block_table.len() * self.limits.block_size >= len, "the block table is too short")?;
        ensure(seq.block_table.iter().all(|b| b.0 != 0), "page 0 is in a block table")?;
        let distinct: HashSet<BlockId> = seq.block_table.iter().copied().collect();
        ensure(distinct.len() == seq.block_table.len(), "a page is twice in a block table")
    }

    /// Writes the source of a sequence that starts.
    fn encode(&mut self, seq: &BatchSeq) -> Result<(), EngineError> {
        ensure(
            seq.source.is_some() == self.limits.source.is_some(),
            "a source that is missing, or not wanted",
        )?;
        let Some(source) = seq.source.as_ref().filter(|_| seq.num_computed == 0) else { return Ok(()) };
        for (p, token) in source.token_ids.iter().enumerate() {
            let page = source.block_table[p / self.limits.block_size].0 as usize;
            ensure(page != 0, "page 0 is in the block table of a source")?;
            self.source_pages[page][p % self.limits.block_size] = Some(*token);
        }
        Ok(())
    }

    /// The model after the source, as the pages tell it.
    fn source_model(&self, seq: &BatchSeq) -> Result<FakeModel, EngineError> {
        let mut model = FakeModel::default();
        for p in 0..seq.source.as_ref().map_or(0, |s| s.token_ids.len()) {
            let page = seq.source.as_ref().map_or(0, |s| s.block_table[p / self.limits.block_size].0);
            let stored = self.source_pages[page as usize][p % self.limits.block_size];
            model.push(stored.ok_or_else(|| EngineError::Internal("a source was never written".to_owned()))?);
        }
        Ok(model)
    }

    /// Writes one row and returns the model after everything up to it, as the pages tell it.
    fn row(&mut self, seq: &BatchSeq, position: usize, token: u32) -> Result<FakeModel, EngineError> {
        let place =
            |p: usize| (seq.block_table[p / self.limits.block_size].0 as usize, p % self.limits.block_size);
        let (page, offset) = place(position);
        self.pages[page][offset] = Some((position, token));
        let mut model = self.source_model(seq)?;
        for p in 0..=position {
            let (page, offset) = place(p);
            let Some((stored, token)) = self.pages[page][offset] else {
                return Err(EngineError::Internal(format!("position {p} was never written")));
            };
            ensure(stored == p, "a page holds another position")?;
            model.push(token);
        }
        if self.limits.has_recurrent_state {
            let state = &mut self.states[seq.state_slot.0 as usize];
            if position == 0 {
                *state = FakeModel::default();
            }
            state.push(token);
            ensure(*state == model, "recurrent state and KV disagree")?;
        }
        Ok(model)
    }
}

impl StepRunner for FakeRunner {
    fn step(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), EngineError> {
        self.check_batch(batch)?;
        logits.vocab_size = self.limits.vocab_size;
        logits.data.clear();
        let mut wanted = batch.logits_rows.iter().copied().peekable();
        let mut row = 0;
        for seq in &batch.seqs {
            self.encode(seq)?;
            for position in seq.num_computed..seq.num_computed + seq.num_tokens {
                let model = self.row(seq, position, batch.token_ids[row])?;
                if wanted.next_if_eq(&row).is_some() {
                    logits.data.extend(model.logits(self.limits.vocab_size));
                }
                row += 1;
            }
        }
        (self.hook)(batch, logits)
    }

    fn limits(&self) -> RunnerLimits {
        self.limits
    }

    fn state_snapshots(&mut self) -> Option<&mut dyn StateSnapshots> {
        if self.snapshots.is_empty() { None } else { Some(self) }
    }

    fn page_copies(&mut self) -> Option<&mut dyn PageCopies> {
        if self.copies_pages { Some(self) } else { None }
    }
}

impl PageCopies for FakeRunner {
    fn copy(&mut self, from: BlockId, to: BlockId) -> Result<(), EngineError> {
        ensure(from.0 != 0 && to.0 != 0 && from != to, "a copy from or to page 0, or onto itself")?;
        self.pages[to.0 as usize] = self.pages[from.0 as usize].clone();
        Ok(())
    }
}

impl StateSnapshots for FakeRunner {
    fn num_slots(&self) -> usize {
        self.snapshots.len()
    }

    fn save(&mut self, from: StateSlot, to: SnapshotSlot) -> Result<(), EngineError> {
        self.snapshots[to.0 as usize] = self.states[from.0 as usize];
        Ok(())
    }

    fn restore(&mut self, from: SnapshotSlot, to: StateSlot) -> Result<(), EngineError> {
        self.states[to.0 as usize] = self.snapshots[from.0 as usize];
        Ok(())
    }
}

fn ensure(holds: bool, message: &str) -> Result<(), EngineError> {
    if holds { Ok(()) } else { Err(EngineError::Internal(message.to_owned())) }
}
