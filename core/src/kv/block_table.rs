//! One sequence's pages, in order, and the hashes of its full pages.
//!
//! Hashes outlive the pages: after preemption the same tokens find their old pages without being hashed again.

use super::block_pool::BlockId;
use super::prefix_cache::BlockHash;

/// The pages of one sequence. Changed only by [`KvCache`](super::KvCache), which owns the references behind it.
#[derive(Debug, Default)]
pub struct BlockTable {
    pub(super) blocks: Vec<BlockId>,
    pub(super) hashes: Vec<BlockHash>,
    // The first `num_published` pages were offered to the prefix cache (or came from it).
    pub(super) num_published: usize,
}

impl BlockTable {
    /// Pages in sequence order.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Hashes of the first `num_blocks` pages, as far as they were needed before.
    #[must_use]
    pub fn hashes(&self, num_blocks: usize) -> &[BlockHash] {
        &self.hashes[..num_blocks.min(self.hashes.len())]
    }

    /// Hashes of the first `num_blocks` pages of `tokens`, computing those that are new.
    pub(super) fn hashes_of(&mut self, tokens: &[u32], block_size: usize, num_blocks: usize) -> &[BlockHash] {
        for index in self.hashes.len()..num_blocks {
            let page = &tokens[index * block_size..(index + 1) * block_size];
            let hash = BlockHash::chain(self.hashes.last(), page, &[]);
            self.hashes.push(hash);
        }
        &self.hashes[..num_blocks]
    }
}
