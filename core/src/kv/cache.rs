//! Gives pages to sequences and takes them back; shares computed prefixes between them.

use super::block_pool::BlockPool;
use super::block_table::BlockTable;
use super::prefix_cache::PrefixCache;

/// Not enough free pages; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} KV pages are needed and {free} are free")]
pub struct OutOfBlocks {
    /// Pages that were asked for.
    pub needed: usize,
    /// Pages that are free.
    pub free: usize,
}

/// The page pool with its prefix cache.
///
/// The life of a sequence: [`match_prefix`](Self::match_prefix), [`adopt_prefix`](Self::adopt_prefix),
/// [`reserve`](Self::reserve) before each step that writes further, [`publish`](Self::publish) after it (and
/// [`truncate`](Self::truncate) where rows were taken back), [`release`](Self::release) at the end. A table that is dropped unreleased leaks its pages.
#[derive(Debug)]
pub struct KvCache {
    block_size: usize,
    pub(super) pool: BlockPool,
    prefix: Option<PrefixCache>,
}

impl KvCache {
    /// A pool of `num_blocks` pages of `block_size` tokens; page 0 is never handed out.
    #[must_use]
    pub fn new(num_blocks: usize, block_size: usize, enable_prefix_caching: bool) -> Self {
        let prefix = enable_prefix_caching.then(|| PrefixCache::new(num_blocks));
        Self { block_size, pool: BlockPool::new(num_blocks), prefix }
    }

    /// Tokens per page.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Pages that can ever be handed out.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pool.capacity()
    }

    /// Pages that can be handed out now, cached ones included.
    #[must_use]
    pub fn num_free(&self) -> usize {
        self.pool.num_free()
    }

    /// Share of the pages that sequences hold, 0 to 1.
    #[must_use]
    pub fn usage(&self) -> f64 {
        let capacity = self.capacity().max(1);
        (self.capacity() - self.num_free()) as f64 / capacity as f64
    }

    /// Whether computed prefixes are shared.
    #[must_use]
    pub fn shares_prefixes(&self) -> bool {
        self.prefix.is_some()
    }

    /// Pages at the start of `tokens` that are cached. The page of the last token never counts: its logits are
    /// needed, so it is always computed.
    pub fn match_prefix(&self, table: &mut BlockTable, tokens: &[u32]) -> usize {
        let Some(prefix) = &self.prefix else { return 0 };
        let num_blocks = tokens.len().saturating_sub(1) / self.block_size;
        prefix.matched(table.hashes_of(tokens, self.block_size, num_blocks)).count()
    }

    /// Makes the first `num_blocks` matched pages the start of an empty table.
    pub fn adopt_prefix(&mut self, table: &mut BlockTable, num_blocks: usize) {
        debug_assert!(table.blocks.is_empty(), "a prefix can only start a sequence");
        let Some(prefix) = &self.prefix else { return };
        for block in prefix.matched(&table.hashes[..num_blocks]) {
            self.pool.retain(block);
            table.blocks.push(block);
        }
        table.num_published = table.blocks.len();
    }

    /// Extends a table until it covers `num_tokens`: all the pages that are missing, or none.
    pub fn reserve(&mut self, table: &mut BlockTable, num_tokens: usize) -> Result<(), OutOfBlocks> {
        let needed = self.num_missing(table, num_tokens);
        let out_of_blocks = OutOfBlocks { needed, free: self.num_free() };
        if needed > out_of_blocks.free {
            return Err(out_of_blocks);
        }
        for _ in 0..needed {
            let allocation = self.pool.allocate().ok_or(out_of_blocks)?;
            if let (true, Some(prefix)) = (allocation.evicted, &mut self.prefix) {
                prefix.remove(allocation.block);
            }
            table.blocks.push(allocation.block);
        }
        Ok(())
    }

    /// Pages that a table lacks to cover `num_tokens`.
    #[must_use]
    pub fn num_missing(&self, table: &BlockTable, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.block_size).saturating_sub(table.blocks.len())
    }

    /// Offers the pages that are full and computed to the prefix cache; the first `num_computed` of `tokens` are
    /// computed.
    pub fn publish(&mut self, table: &mut BlockTable, tokens: &[u32], num_computed: usize) {
        let Some(prefix) = &mut self.prefix else { return };
        let num_full = num_computed / self.block_size;
        for index in table.num_published..num_full {
            let hash = table.hashes_of(tokens, self.block_size, index + 1)[index];
            let block = table.blocks[index];
            if prefix.insert(hash, block) {
                self.pool.mark_cached(block);
            }
            table.num_published = index + 1;
        }
    }

    /// Gives the pages back that lie behind the first `num_tokens`: what was written there is not needed. None of them may
    /// have been published.
    pub fn truncate(&mut self, table: &mut BlockTable, num_tokens: usize) {
        let num_blocks = num_tokens.div_ceil(self.block_size);
        debug_assert!(table.num_published <= num_blocks, "a published page is full of tokens that are kept");
        while table.blocks.len() > num_blocks {
            if let Some(block) = table.blocks.pop() {
                self.pool.release(block);
            }
        }
    }

    /// Gives all pages of a table back, the last one first, so that the end of a prefix is evicted before its start.
    pub fn release(&mut self, table: &mut BlockTable) {
        for block in table.blocks.drain(..).rev() {
            self.pool.release(block);
        }
        table.num_published = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kv::BlockId;

    const BLOCK_SIZE: usize = 4;

    fn computed(kv: &mut KvCache, tokens: &[u32]) -> BlockTable {
        let mut table = BlockTable::default();
        kv.reserve(&mut table, tokens.len()).unwrap();
        kv.publish(&mut table, tokens, tokens.len());
        table
    }

    #[test]
    fn the_page_of_the_last_token_is_never_a_hit() {
        let mut kv = KvCache::new(8, BLOCK_SIZE, true);
        let tokens: Vec<u32> = (0..8).collect();
        let mut first = computed(&mut kv, &tokens);
        let mut second = BlockTable::default();
        assert_eq!(kv.match_prefix(&mut second, &tokens), 1);
        assert_eq!(kv.match_prefix(&mut BlockTable::default(), &[tokens.clone(), vec![9]].concat()), 2);

        kv.adopt_prefix(&mut second, 1);
        assert_eq!(second.blocks(), &first.blocks()[..1]);
        kv.release(&mut first);
        kv.release(&mut second);
        assert_eq!(kv.num_free(), 7);
    }

    #[test]
    fn a_failed_reservation_takes_nothing() {
        let mut kv = KvCache::new(4, BLOCK_SIZE, true);
        let mut table = BlockTable::default();
        assert_eq!(kv.reserve(&mut table, 13), Err(OutOfBlocks { needed: 4, free: 3 }));
        assert_eq!((table.blocks().len(), kv.num_free()), (0, 3));
    }

    #[test]
    fn a_truncated_table_keeps_what_its_tokens_need() {
        let mut kv = KvCache::new(8, BLOCK_SIZE, true);
        let tokens: Vec<u32> = (0..6).collect();
        let mut table = computed(&mut kv, &tokens);
        let blocks = table.blocks().to_vec();
        kv.reserve(&mut table, 13).unwrap();
        kv.truncate(&mut table, 8);
        assert_eq!((table.blocks(), kv.num_free()), (&blocks[..], 5));
        kv.truncate(&mut table, 8);
        kv.release(&mut table);
        assert_eq!(kv.num_free(), 7);
    }

    #[test]
    fn the_end_of_a_prefix_is_evicted_before_its_start() {
        let mut kv = KvCache::new(4, BLOCK_SIZE, true);
        let tokens: Vec<u32> = (0..12).collect();
        let mut table = computed(&mut kv, &tokens);
        kv.release(&mut table);
        kv.reserve(&mut BlockTable::default(), BLOCK_SIZE).unwrap();
        assert_eq!(kv.match_prefix(&mut BlockTable::default(), &[tokens, vec![0]].concat()), 2);
    }

    #[test]
    fn without_the_switch_nothing_is_shared() {
        let mut kv = KvCache::new(8, BLOCK_SIZE, false);
        let tokens: Vec<u32> = (0..9).collect();
        computed(&mut kv, &tokens);
        assert_eq!(kv.match_prefix(&mut BlockTable::default(), &tokens), 0);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Start { stem: u8, len: usize },
        Grow { which: usize, by: usize },
        Finish { which: usize },
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            (0..3_u8, 1..30_usize).prop_map(|(stem, len)| Op::Start { stem, len }),
            (any::<usize>(), 1..6_usize).prop_map(|(which, by)| Op::Grow { which, by }),
            any::<usize>().prop_map(|which| Op::Finish { which }),
        ];
        proptest::collection::vec(op, 1..80)
    }

    /// The model: what every page would hold on a device, by page and offset.
    struct Device {
        kv: KvCache,
        pages: Vec<[Option<u32>; BLOCK_SIZE]>,
        running: Vec<(BlockTable, Vec<u32>)>,
    }

    impl Device {
        fn write(&mut self, which: usize, from: usize) {
            let (table, tokens) = &mut self.running[which];
            for (at, token) in tokens.iter().enumerate().skip(from) {
                self.pages[table.blocks()[at / BLOCK_SIZE].0 as usize][at % BLOCK_SIZE] = Some(*token);
            }
            self.kv.publish(table, tokens, tokens.len());
        }

        fn apply(&mut self, op: &Op) {
            match *op {
                Op::Start { stem, len } => {
                    let tokens: Vec<u32> =
                        (0..len as u32).map(|i| if i < 9 { i } else { i + 100 * stem as u32 }).collect();
                    let mut table = BlockTable::default();
                    let hit = self.kv.match_prefix(&mut table, &tokens);
                    self.kv.adopt_prefix(&mut table, hit);
                    match self.kv.reserve(&mut table, len) {
                        Ok(()) => {
                            self.running.push((table, tokens));
                            self.write(self.running.len() - 1, hit * BLOCK_SIZE);
                        }
                        Err(_) => self.kv.release(&mut table),
                    }
                }
                Op::Grow { which, by } if !self.running.is_empty() => {
                    let which = which % self.running.len();
                    let (table, tokens) = &mut self.running[which];
                    let len = tokens.len();
                    if self.kv.reserve(table, len + by).is_ok() {
                        tokens.extend((0..by).map(|i| (len * 7 + i) as u32));
                        self.write(which, len);
                    }
                }
                Op::Finish { which } if !self.running.is_empty() => {
                    let (mut table, _) = self.running.swap_remove(which % self.running.len());
                    self.kv.release(&mut table);
                }
                Op::Grow { .. } | Op::Finish { .. } => {}
            }
        }

        fn check(&self) {
            let mut held: Vec<BlockId> = Vec::new();
            for (table, tokens) in &self.running {
                for (at, token) in tokens.iter().enumerate() {
                    let page = self.pages[table.blocks()[at / BLOCK_SIZE].0 as usize];
                    assert_eq!(
                        page[at % BLOCK_SIZE],
                        Some(*token),
                        "another sequence wrote into this one's page"
                    );
                }
                held.extend(table.blocks());
            }
            assert!(held.iter().all(|b| b.0 != 0));
            for block in &held {
                let owners = held.iter().filter(|b| *b == block).count();
                assert_eq!(self.kv.pool.ref_count(*block) as usize, owners);
            }
            held.sort_unstable();
            held.dedup();
            assert_eq!(self.kv.num_free(), self.kv.capacity() - held.len());
        }
    }

    proptest! {
        #[test]
        fn every_sequence_reads_back_its_own_tokens_whatever_happens_to_others(
            ops in ops(), enable_prefix_caching: bool, num_blocks in 1..24_usize,
        ) {
            let kv = KvCache::new(num_blocks, BLOCK_SIZE, enable_prefix_caching);
            let mut device = Device { kv, pages: vec![[None; BLOCK_SIZE]; num_blocks], running: Vec::new() };
            for op in &ops {
                device.apply(op);
                device.check();
            }
            while !device.running.is_empty() {
                device.apply(&Op::Finish { which: 0 });
            }
            prop_assert_eq!(device.kv.num_free(), num_blocks - 1);
        }
    }
}
