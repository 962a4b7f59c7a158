//! The pool of KV pages: reference counts, the free list, and the pages that are free but still hold a cached prefix.
//!
//! A page is in exactly one of three places: referenced, on the free list, or on the LRU list of cached pages. Pages
//! without content are taken first, then the least recently used cached one. Page 0 is in none of them, ever.

/// A page of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Page 0: kernels use it for padded rows, the pool uses its links as the ends of the LRU list.
const SENTINEL: usize = 0;

/// A page that was just handed out with one reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The page.
    pub block: BlockId,
    /// It held a cached prefix, which is lost now: the caller must forget its hash.
    pub evicted: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    ref_count: u32,
    cached: bool,
    // Neighbours on the LRU list; meaningful only while the page is on it.
    older: u32,
    newer: u32,
}

/// Reference-counted KV pages `1..num_blocks`.
#[derive(Debug)]
pub struct BlockPool {
    pages: Vec<Page>,
    free: Vec<BlockId>,
    num_cached_free: usize,
}

impl BlockPool {
    /// A pool of `num_blocks` pages, of which page 0 is never handed out.
    #[must_use]
    pub fn new(num_blocks: usize) -> Self {
        // At least the sentinel exists, so that the list ends have a place.
        let pages = vec![Page::default(); num_blocks.max(1)];
        let free = (1..pages.len() as u32).rev().map(BlockId).collect();
        Self { pages, free, num_cached_free: 0 }
    }

    /// Pages that can ever be handed out.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pages.len() - 1
    }

    /// Pages that [`Self::allocate`] can hand out now, cached ones included.
    #[must_use]
    pub fn num_free(&self) -> usize {
        self.free.len() + self.num_cached_free
    }

    /// Takes a free page, the least recently used cached one if no other is left; `None` when all are referenced.
    pub fn allocate(&mut self) -> Option<Allocation> {
        let (block, evicted) = match self.free.pop() {
            Some(block) => (block, false),
            None => (self.pop_oldest()?, true),
        };
        let page = &mut self.pages[block.index()];
        page.ref_count = 1;
        page.cached = false;
        Some(Allocation { block, evicted })
    }

    /// Adds a reference to a page that is referenced or cached.
    pub fn retain(&mut self, block: BlockId) {
        let page = self.pages[block.index()];
        debug_assert!(page.ref_count > 0 || page.cached, "a free page has no content to share: {block:?}");
        if page.ref_count == 0 {
            self.unlink(block);
        }
        self.pages[block.index()].ref_count += 1;
    }

    /// Gives a reference back. The last one makes the page free; it keeps its content if it is cached.
    pub fn release(&mut self, block: BlockId) {
        let page = &mut self.pages[block.index()];
        debug_assert!(page.ref_count > 0, "released more often than retained: {block:?}");
        page.ref_count -= 1;
        if page.ref_count > 0 {
            return;
        }
        if page.cached {
            self.push_newest(block);
        } else {
            self.free.push(block);
        }
    }

    /// Declares that a referenced page holds a cached prefix, to be kept for as long as possible.
    pub fn mark_cached(&mut self, block: BlockId) {
        debug_assert!(
            self.pages[block.index()].ref_count > 0,
            "only an owned page can become cached: {block:?}"
        );
        self.pages[block.index()].cached = true;
    }

    /// References to a page.
    #[must_use]
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.pages[block.index()].ref_count
    }

    fn push_newest(&mut self, block: BlockId) {
        let newest = self.pages[SENTINEL].older;
        self.pages[newest as usize].newer = block.0;
        self.pages[block.index()].older = newest;
        self.pages[block.index()].newer = SENTINEL as u32;
        self.pages[SENTINEL].older = block.0;
        self.num_cached_free += 1;
    }

    fn pop_oldest(&mut self) -> Option<BlockId> {
        let oldest = self.pages[SENTINEL].newer;
        if oldest as usize == SENTINEL {
            return None;
        }
        self.unlink(BlockId(oldest));
        Some(BlockId(oldest))
    }

    fn unlink(&mut self, block: BlockId) {
        let Page { older, newer, .. } = self.pages[block.index()];
        self.pages[older as usize].newer = newer;
        self.pages[newer as usize].older = older;
        self.num_cached_free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_zero_is_never_handed_out() {
        let mut pool = BlockPool::new(4);
        let handed_out: Vec<_> = std::iter::from_fn(|| pool.allocate()).map(|a| a.block.0).collect();
        assert_eq!(handed_out, [1, 2, 3]);
        assert_eq!(pool.capacity(), 3);
    }

    #[test]
    fn an_empty_pool_hands_out_nothing() {
        assert_eq!(BlockPool::new(0).allocate(), None);
        assert_eq!(BlockPool::new(1).allocate(), None);
    }

    #[test]
    fn pages_without_content_go_before_cached_ones_and_the_least_recently_used_goes_first() {
        let mut pool = BlockPool::new(5);
        let blocks: Vec<_> = (0..4).map(|_| pool.allocate().unwrap().block).collect();
        for &b in &blocks[..3] {
            pool.mark_cached(b);
        }
        for i in [1, 0, 2, 3] {
            pool.release(blocks[i]);
        }
        pool.retain(blocks[1]);
        pool.release(blocks[1]);

        let order: Vec<_> = std::iter::from_fn(|| pool.allocate()).map(|a| (a.block, a.evicted)).collect();
        assert_eq!(order, [(blocks[3], false), (blocks[0], true), (blocks[2], true), (blocks[1], true)]);
    }

    #[test]
    fn a_shared_page_stays_until_its_last_owner_leaves() {
        let mut pool = BlockPool::new(2);
        let block = pool.allocate().unwrap().block;
        pool.retain(block);
        pool.release(block);
        assert_eq!((pool.num_free(), pool.ref_count(block)), (0, 1));
        pool.release(block);
        assert_eq!(pool.num_free(), 1);
    }
}
