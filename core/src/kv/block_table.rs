//! One sequence's pages, in order, and the hashes of its full pages.
//!
//! Hashes outlive the pages: after preemption the same tokens find their old pages without being hashed again.

use std::ops::Range;

use smallvec::SmallVec;

use super::block_pool::BlockId;
use super::prefix_cache::BlockHash;

/// What placeholder tokens stand for: pages that hold them are equal only if this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Media {
    /// Indices of the placeholder tokens.
    pub tokens: Range<usize>,
    /// SHA-256 of the content.
    pub digest: [u64; 4],
}

/// The pages of one sequence. Changed only by [`KvCache`](super::KvCache), which owns the references behind it.
#[derive(Debug, Default)]
pub struct BlockTable {
    pub(super) blocks: Vec<BlockId>,
    pub(super) hashes: Vec<BlockHash>,
    // The first `num_published` pages were offered to the prefix cache (or came from it).
    pub(super) num_published: usize,
    pub(super) media: Vec<Media>,
}

impl BlockTable {
    /// An empty table of a sequence with placeholders.
    #[must_use]
    pub fn with_media(media: Vec<Media>) -> Self {
        Self { media, ..Self::default() }
    }

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
            let range = index * block_size..(index + 1) * block_size;
            let overlaps = |m: &&Media| m.tokens.start < range.end && range.start < m.tokens.end;
            let key = |m: &Media| [m.tokens.start as u64].into_iter().chain(m.digest);
            let keys: SmallVec<[u64; 5]> = self.media.iter().filter(overlaps).flat_map(key).collect();
            let hash = BlockHash::chain(self.hashes.last(), &tokens[range.clone()], &keys);
            self.hashes.push(hash);
        }
        &self.hashes[..num_blocks]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_with_placeholders_are_equal_if_what_they_stand_for_is() {
        let tokens = [7; 12];
        let hashes = |digest: u64| {
            let media = vec![Media { tokens: 5..7, digest: [digest; 4] }];
            BlockTable::with_media(media).hashes_of(&tokens, 4, 3).to_vec()
        };
        let (a, b) = (hashes(1), hashes(2));
        assert_eq!(a, hashes(1));
        assert_eq!(a[0], b[0], "the page before the image");
        assert_ne!(a[1], b[1], "the page of the image");
        assert_ne!(a[2], b[2], "the page after the image");
    }
}
