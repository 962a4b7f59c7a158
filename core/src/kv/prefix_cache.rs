//! Which full page holds which prefix: a chained hash per page, from the start of the sequence.
//!
//! Equal hashes mean equal token ids (and extra keys) in the page and in all pages before it. SHA-256 makes a
//! collision, which would leak one client's context into another's, out of reach.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::block_pool::BlockId;

/// Identity of a full page's content together with everything before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHash([u8; 32]);

impl std::fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockHash({:02x}{:02x}{:02x}{:02x})", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

impl BlockHash {
    /// Hash of a page that follows `parent` (`None` for the first page) and holds `tokens`.
    ///
    /// `extra_keys` is whatever else the content depends on: adapter, cache salt, the media behind placeholder tokens.
    #[must_use]
    pub fn chain(parent: Option<&Self>, tokens: &[u32], extra_keys: &[u64]) -> Self {
        let mut hasher = Sha256::new();
        // No real hash is all zero, so the root needs no tag of its own.
        hasher.update(parent.map_or([0; 32], |p| p.0));
        // The count separates tokens from keys.
        hasher.update((tokens.len() as u64).to_le_bytes());
        for token in tokens {
            hasher.update(token.to_le_bytes());
        }
        for key in extra_keys {
            hasher.update(key.to_le_bytes());
        }
        Self(hasher.finalize().into())
    }
}

/// The index of cached pages, in both directions.
#[derive(Debug)]
pub struct PrefixCache {
    by_hash: HashMap<BlockHash, BlockId>,
    by_block: Vec<Option<BlockHash>>,
}

impl PrefixCache {
    /// An empty index for pages below `num_blocks`.
    #[must_use]
    pub fn new(num_blocks: usize) -> Self {
        Self { by_hash: HashMap::new(), by_block: vec![None; num_blocks] }
    }

    /// The page that holds this prefix.
    #[must_use]
    pub fn get(&self, hash: &BlockHash) -> Option<BlockId> {
        self.by_hash.get(hash).copied()
    }

    /// The pages of the longest cached run at the start of `hashes`.
    pub fn matched<'a>(&'a self, hashes: &'a [BlockHash]) -> impl Iterator<Item = BlockId> + 'a {
        hashes.iter().map_while(|hash| self.get(hash))
    }

    /// Registers a full, computed page; returns false (and registers nothing) if another page already holds the
    /// same prefix.
    pub fn insert(&mut self, hash: BlockHash, block: BlockId) -> bool {
        if self.by_hash.contains_key(&hash) {
            return false;
        }
        self.by_hash.insert(hash, block);
        self.by_block[block.0 as usize] = Some(hash);
        true
    }

    /// Forgets a page whose content is about to be overwritten.
    pub fn remove(&mut self, block: BlockId) {
        if let Some(hash) = self.by_block[block.0 as usize].take() {
            self.by_hash.remove(&hash);
        }
    }

    /// Cached pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Whether nothing is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_parent_tokens_and_extra_keys() {
        let root = BlockHash::chain(None, &[1, 2], &[]);
        assert_eq!(root, BlockHash::chain(None, &[1, 2], &[]));
        let others = [
            BlockHash::chain(None, &[2, 1], &[]),
            BlockHash::chain(Some(&root), &[1, 2], &[]),
            BlockHash::chain(None, &[1, 2], &[7]),
            BlockHash::chain(None, &[1, 2, 7, 0], &[]),
        ];
        for (i, other) in others.iter().enumerate() {
            assert_ne!(*other, root);
            assert!(others[i + 1..].iter().all(|o| o != other));
        }
    }

    #[test]
    fn the_first_page_with_a_prefix_keeps_it() {
        let mut cache = PrefixCache::new(4);
        let hash = BlockHash::chain(None, &[1], &[]);
        assert!(cache.insert(hash, BlockId(1)));
        assert!(!cache.insert(hash, BlockId(2)));
        cache.remove(BlockId(2));
        assert_eq!(cache.get(&hash), Some(BlockId(1)));
        cache.remove(BlockId(1));
        assert!(cache.is_empty());
    }

    #[test]
    fn a_match_ends_at_the_first_missing_page() {
        let mut cache = PrefixCache::new(8);
        let a = BlockHash::chain(None, &[1], &[]);
        let b = BlockHash::chain(Some(&a), &[2], &[]);
        let c = BlockHash::chain(Some(&b), &[3], &[]);
        cache.insert(a, BlockId(5));
        cache.insert(c, BlockId(6));
        assert_eq!(cache.matched(&[a, b, c]).collect::<Vec<_>>(), [BlockId(5)]);
    }
}
