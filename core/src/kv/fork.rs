//! Sequences that share what they have in common: pages are copied only when they are written.

use super::block_pool::BlockId;
use super::block_table::BlockTable;
use super::cache::{KvCache, OutOfBlocks};

impl KvCache {
    /// Another table over the same pages: two sequences continue what both have computed.
    pub fn fork(&mut self, table: &BlockTable) -> BlockTable {
        table.blocks.iter().for_each(|&block| self.pool.retain(block));
        BlockTable {
            blocks: table.blocks.clone(),
            hashes: table.hashes.clone(),
            num_published: table.num_published,
            media: table.media.clone(),
        }
    }

    /// Makes room for the last of `num_tokens` tokens in a page that no other table has. A shared page that is not full
    /// is replaced by one of its own; its content is to be copied: `(from, to)`.
    ///
    /// # Errors
    /// No page is free; nothing was changed.
    pub fn reserve_own(
        &mut self,
        table: &mut BlockTable,
        num_tokens: usize,
    ) -> Result<Option<(BlockId, BlockId)>, OutOfBlocks> {
        let num_blocks = table.blocks.len();
        self.reserve(table, num_tokens)?;
        let shared = table.blocks.last().copied().filter(|&block| self.pool.ref_count(block) > 1);
        let Some(shared) = shared.filter(|_| table.blocks.len() == num_blocks) else { return Ok(None) };
        table.blocks.pop();
        if let Err(error) = self.reserve(table, num_tokens) {
            table.blocks.push(shared);
            return Err(error);
        }
        self.pool.release(shared);
        Ok(table.blocks.last().map(|&own| (shared, own)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_SIZE: usize = 4;

    fn table(kv: &mut KvCache, num_tokens: usize) -> BlockTable {
        let mut table = BlockTable::default();
        kv.reserve(&mut table, num_tokens).unwrap();
        table
    }

    #[test]
    fn the_last_owner_of_a_page_writes_into_it_without_a_copy() {
        let mut kv = KvCache::new(8, BLOCK_SIZE, false);
        let mut first = table(&mut kv, 6);
        let (mut second, mut third) = (kv.fork(&first), kv.fork(&first));
        let shared = first.blocks()[1];
        assert_eq!(kv.num_free(), 5, "a fork takes nothing");

        let (from, to) = kv.reserve_own(&mut first, 7).unwrap().unwrap();
        assert_eq!((from, to), (shared, first.blocks()[1]));
        assert_eq!(kv.reserve_own(&mut second, 7).unwrap().map(|(from, _)| from), Some(shared));
        assert_eq!(kv.reserve_own(&mut third, 7).unwrap(), None);
        assert_eq!(third.blocks()[1], shared);
        let starts = [&first, &second, &third].map(|t| t.blocks()[0]);
        assert_eq!(starts, [first.blocks()[0]; 3], "full pages stay shared");
        for table in [&mut first, &mut second, &mut third] {
            kv.release(table);
        }
        assert_eq!(kv.num_free(), 7);
    }

    #[test]
    fn a_page_that_begins_is_new_and_needs_no_copy() {
        let mut kv = KvCache::new(8, BLOCK_SIZE, false);
        let mut first = table(&mut kv, 4);
        let mut second = kv.fork(&first);
        assert_eq!(kv.reserve_own(&mut first, 5).unwrap(), None);
        assert_eq!(kv.reserve_own(&mut second, 5).unwrap(), None);
        assert_eq!(first.blocks()[0], second.blocks()[0]);
        assert_ne!(first.blocks()[1], second.blocks()[1]);
    }

    #[test]
    fn without_a_free_page_nothing_changes() {
        let mut kv = KvCache::new(3, BLOCK_SIZE, false);
        let mut first = table(&mut kv, 6);
        let second = kv.fork(&first);
        assert_eq!(kv.reserve_own(&mut first, 7), Err(OutOfBlocks { needed: 1, free: 0 }));
        assert_eq!(first.blocks(), second.blocks());
    }
}
