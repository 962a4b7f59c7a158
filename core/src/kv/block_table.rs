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

    /// Hash of the `index`-th page, once it was needed.
    #[must_use]
    pub fn hash(&self, index: usize) -> Option<&BlockHash> {
        self.hashes.get(index)
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
