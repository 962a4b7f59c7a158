//! Beam search of one request: the search, and the pages of its beams.
//!
//! Beams share the pages of what they have in common. A step permutes their block tables and copies nothing; before a
//! beam writes into a page that others see too, it gets a copy of its own ([`KvCache::reserve_own`]).

use crate::exec::sample::beam::{BeamParams, BeamSearch, Hypothesis, SearchLengths};
use crate::exec::sample::{SampleError, SamplingState};
use crate::kv::{BlockId, BlockTable, KvCache, OutOfBlocks};

use super::sequence::Limits;

/// Beam search of one request.
#[derive(Debug)]
pub(super) struct Beams {
    params: BeamParams,
    /// From the end of the prompt on.
    running: Option<RunningBeams>,
}

#[derive(Debug)]
struct RunningBeams {
    search: BeamSearch,
    /// One per beam.
    tables: Vec<BlockTable>,
}

impl Beams {
    pub(super) fn new(params: BeamParams) -> Self {
        Self { params, running: None }
    }

    /// Sequences of a step that the beams can take.
    pub(super) fn width(&self) -> usize {
        self.params.num_beams
    }

    /// Whether the prompt is behind them.
    pub(super) fn are_running(&self) -> bool {
        self.running.is_some()
    }

    /// Length of every beam, prompt included; 0 before they run.
    pub(super) fn len(&self) -> usize {
        self.running.as_ref().map_or(0, |r| r.search.len())
    }

    /// The token that each beam computes next.
    pub(super) fn last_tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.running.iter().flat_map(|r| r.search.last_tokens())
    }

    /// Pages of each beam.
    pub(super) fn tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.running.iter().flat_map(|r| &r.tables)
    }

    /// Starts from a computed prompt. `prompt` are its pages, `num_uncounted` the tokens at its start that lengths do
    /// not count.
    pub(super) fn start(
        &mut self,
        (prompt, num_prompt, num_uncounted): (BlockTable, usize, usize),
        sampling: &SamplingState,
        limits: &Limits,
    ) {
        let params = sampling.params();
        let mut ends = params.stop_token_ids.clone();
        if !params.ignore_eos {
            ends.extend_from_slice(&limits.eos_token_ids);
        }
        ends.sort_unstable();
        ends.dedup();
        let max = limits.max_len.min(num_prompt.saturating_add(params.max_tokens));
        let lengths = SearchLengths { prompt: num_prompt, uncounted: num_uncounted, max };
        let search = BeamSearch::new(self.params, sampling.clone(), lengths, ends);
        self.running = Some(RunningBeams { search, tables: vec![prompt] });
    }

    /// Takes in the logits after each beam. `Some` when the search is over: what it found, best first.
    pub(super) fn advance<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a [f32]>,
        kv: &mut KvCache,
    ) -> Result<Option<Vec<Hypothesis>>, SampleError> {
        let Some(running) = &mut self.running else { return Ok(None) };
        match running.search.advance(rows)? {
            Some(parents) => {
                let tables = parents.iter().map(|&parent| kv.fork(&running.tables[parent])).collect();
                let mut earlier = std::mem::replace(&mut running.tables, tables);
                earlier.iter_mut().for_each(|table| kv.release(table));
                Ok(None)
            }
            None => Ok(Some(running.search.best())),
        }
    }

    /// Room for the next token of every beam. Adds the pages to copy first; those that were added stay valid when there
    /// is no room for the rest.
    pub(super) fn reserve(
        &mut self,
        kv: &mut KvCache,
        copies: &mut Vec<(BlockId, BlockId)>,
    ) -> Result<(), OutOfBlocks> {
        let len = self.len();
        for table in self.running.iter_mut().flat_map(|r| &mut r.tables) {
            copies.extend(kv.reserve_own(table, len)?);
        }
        Ok(())
    }

    /// Gives all pages back. A later start finds the same again: nothing here depends on chance.
    pub(super) fn stop(&mut self, kv: &mut KvCache) {
        for mut table in self.running.take().into_iter().flat_map(|r| r.tables) {
            kv.release(&mut table);
        }
    }
}

/// Pages that a search can need at most: those that the prompt fills are shared, the others each beam may have alone.
pub(super) fn most_blocks(num_beams: usize, num_prompt: usize, max_len: usize, block_size: usize) -> usize {
    let shared = num_prompt / block_size;
    shared.saturating_add(num_beams.saturating_mul(max_len.div_ceil(block_size).saturating_sub(shared)))
}
