//! A runner without a model: tokens are stored in fake pages and read back through block tables.

use std::collections::HashSet;

use metrale_core::EngineError;
use metrale_core::exec::{
    Batch, BatchSeq, BlockId, DraftBatch, Drafter, Logits, PageCopies, RunnerLimits, StateSlot,
    StateSnapshots, StepRunner,
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

    /// The most likely next token.
    pub(crate) fn best(self, vocab_size: usize) -> u32 {
        let logits: Vec<f32> = self.logits(vocab_size).collect();
        let best = (0..vocab_size).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        best.unwrap() as u32
    }

    /// Greedy continuation, computed without any engine.
    pub(crate) fn greedy(prompt: &[u32], num: usize, vocab_size: usize) -> Vec<u32> {
        let mut model = Self::default();
        for token in prompt {
            model.push(*token);
        }
        (0..num)
            .map(|_| {
                let token = model.best(vocab_size);
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

/// A drafter that knows the model, and is right as often as it is told to.
struct FakeDrafter {
    percent_right: u64,
    /// (position, token after it) of every slot.
    pages: Vec<Vec<Option<(usize, u32)>>>,
}

/// Fake pages of (position, token), fake recurrent state, and a hook after each step.
pub(crate) struct FakeRunner {
    limits: RunnerLimits,
    pages: Vec<Vec<Option<(usize, u32)>>>,
    source_pages: Vec<Vec<Option<u32>>>,
    states: Vec<FakeModel>,
    /// Drafts of each slot's last step, which its state has not taken in.
    draft_tokens: Vec<Vec<u32>>,
    drafter: Option<FakeDrafter>,
    /// (slot, position) of the rows of the last step; their hidden states are still there.
    last_rows: Vec<(StateSlot, usize)>,
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
            draft_tokens: vec![Vec::new(); limits.max_num_seqs],
            drafter: None,
            last_rows: Vec::new(),
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

    /// This many of a hundred drafts are the model's own greedy choice.
    pub(crate) fn with_drafter(mut self, percent_right: u64) -> Self {
        let pages = vec![vec![None; self.limits.block_size]; self.limits.num_blocks];
        self.drafter = Some(FakeDrafter { percent_right, pages });
        self
    }

    /// A drafter without memory, which fails when it is first asked.
    pub(crate) fn with_failing_drafter(mut self) -> Self {
        self.drafter = Some(FakeDrafter { percent_right: 100, pages: Vec::new() });
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
        ensure(seq.num_tokens > seq.num_drafts, "a sequence without rows of known tokens")?;
        ensure(seq.num_drafts <= self.limits.max_num_drafts, "too many drafts")?;
        let last = self.draft_tokens[seq.state_slot.0 as usize].len();
        ensure(seq.num_accepted <= last, "more drafts were accepted than there were")?;
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
        let slot = seq.state_slot.0 as usize;
        let is_draft = position >= seq.num_computed + seq.num_tokens - seq.num_drafts;
        if is_draft {
            self.draft_tokens[slot].push(token);
        }
        if self.limits.has_recurrent_state {
            let state = &mut self.states[slot];
            if position == 0 {
                *state = FakeModel::default();
            }
            let mut after = *state;
            if is_draft {
                self.draft_tokens[slot].iter().for_each(|t| after.push(*t));
            } else {
                after.push(token);
                *state = after;
            }
            ensure(after == model, "recurrent state and KV disagree")?;
        }
        Ok(model)
    }

    /// Recurrent state takes in the drafts of the last step that were right.
    fn take_in_drafts(&mut self, seq: &BatchSeq) {
        let slot = seq.state_slot.0 as usize;
        let drafts = std::mem::take(&mut self.draft_tokens[slot]);
        drafts[..seq.num_accepted].iter().for_each(|t| self.states[slot].push(*t));
    }
}

impl StepRunner for FakeRunner {
    fn step(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), EngineError> {
        self.check_batch(batch)?;
        logits.vocab_size = self.limits.vocab_size;
        logits.data.clear();
        let mut wanted = batch.logits_rows.iter().copied().peekable();
        let mut row = 0;
        self.last_rows.clear();
        for seq in &batch.seqs {
            self.encode(seq)?;
            self.take_in_drafts(seq);
            for position in seq.num_computed..seq.num_computed + seq.num_tokens {
                let model = self.row(seq, position, batch.token_ids[row])?;
                self.last_rows.push((seq.state_slot, position));
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

    fn drafter(&mut self) -> Option<&mut dyn Drafter> {
        if self.drafter.is_none() { None } else { Some(self) }
    }
}

impl PageCopies for FakeRunner {
    fn copy(&mut self, from: BlockId, to: BlockId) -> Result<(), EngineError> {
        ensure(from.0 != 0 && to.0 != 0 && from != to, "a copy from or to page 0, or onto itself")?;
        self.pages[to.0 as usize] = self.pages[from.0 as usize].clone();
        Ok(())
    }
}

impl Drafter for FakeRunner {
    fn draft(&mut self, batch: &DraftBatch, drafts: &mut Vec<u32>) -> Result<(), EngineError> {
        self.check_batch(&batch.slots)?;
        ensure(self.drafter.as_ref().is_some_and(|d| !d.pages.is_empty()), "a drafter without memory")?;
        drafts.clear();
        let (mut row, mut wanted) = (0, Vec::new());
        for (seq, &num_drafts) in batch.slots.seqs.iter().zip(&batch.num_drafts) {
            ensure(num_drafts <= self.limits.max_num_drafts, "too many drafts are wanted")?;
            let rows = row..row + seq.num_tokens;
            let next_ids = &batch.slots.token_ids[rows.clone()];
            for (i, hidden_row) in batch.hidden_rows[rows].iter().enumerate() {
                let expected = (seq.state_slot, seq.num_computed + i);
                ensure(self.last_rows.get(*hidden_row) == Some(&expected), "a hidden state of another row")?;
            }
            row += seq.num_tokens;
            if num_drafts > 0 {
                wanted.push(row - 1);
            }
            self.draft_one(seq, next_ids, num_drafts, drafts)?;
        }
        ensure(wanted == batch.slots.logits_rows, "logits are wanted where drafts begin")
    }
}

impl FakeRunner {
    fn draft_one(
        &mut self,
        seq: &BatchSeq,
        next_ids: &[u32],
        num_drafts: usize,
        drafts: &mut Vec<u32>,
    ) -> Result<(), EngineError> {
        let (block_size, vocab_size) = (self.limits.block_size, self.limits.vocab_size);
        let drafter = self.drafter.as_mut().unwrap();
        let place = |p: usize| (seq.block_table[p / block_size].0 as usize, p % block_size);
        let mut write = |slot: usize, next: u32| {
            let (page, offset) = place(slot);
            drafter.pages[page][offset] = Some((slot, next));
        };
        next_ids.iter().enumerate().for_each(|(i, next)| write(seq.num_computed + i, *next));
        // The drafter attends to all slots before: they must tell of this sequence.
        let end = seq.num_computed + next_ids.len();
        let mut model = FakeModel::default();
        for p in 0..end {
            let (page, offset) = place(p);
            let token = self.pages[page][offset].unwrap().1;
            model.push(token);
            let next = if p + 1 == end {
                next_ids[next_ids.len() - 1]
            } else {
                let (page, offset) = place(p + 1);
                self.pages[page][offset].unwrap().1
            };
            // The last slot of a shared page is that of the sequence that computed it.
            let is_right = drafter.pages[page][offset] == Some((p, next)) || offset + 1 == block_size;
            ensure(is_right, "a slot of the drafter was never filled, or for another sequence")?;
        }
        model.push(next_ids[next_ids.len() - 1]);
        for i in 0..num_drafts {
            let best = model.best(vocab_size);
            let chance = mix((end + i) as u64 ^ u64::from(best) << 32) % 100;
            let draft = if chance < drafter.percent_right { best } else { (best + 1) % vocab_size as u32 };
            drafts.push(draft);
            model.push(draft);
            // The head goes on with its own output, in slots that are not true yet.
            if i + 1 < num_drafts {
                let (page, offset) = place(end + i);
                drafter.pages[page][offset] = Some((end + i, draft));
            }
        }
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
