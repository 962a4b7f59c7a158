//! Paged KV cache bookkeeping: which page belongs to which sequence, and which pages can be shared.
//!
//! Nothing here touches device memory. [`KvCache`] is the door: it promises that a page is owned by whoever holds a
//! reference, that only full and computed pages are shared, and that page 0 is never handed out.

pub mod block_pool;
pub mod block_table;
pub mod cache;
mod fork;
pub mod prefix_cache;

pub use block_pool::{BlockId, BlockPool};
pub use block_table::{BlockTable, Media};
pub use cache::{KvCache, OutOfBlocks};
pub use prefix_cache::{BlockHash, PrefixCache};
