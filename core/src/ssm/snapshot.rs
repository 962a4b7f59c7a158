//! Which snapshot slot holds the recurrent state after which prefix.
//!
//! The index decides, the runner copies ([`StateSnapshots`](crate::exec::StateSnapshots)). A snapshot is keyed by the
//! hash of the last full page before it, so that state and KV pages are found by the same key and used together only.

use crate::kv::BlockHash;

/// A place for one sequence's complete recurrent state, apart from the slots that steps work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotSlot(pub u32);

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: BlockHash,
    last_used: u64,
}

/// Snapshots by prefix, the least recently used replaced first. Capacities are tens, so searches are linear.
#[derive(Debug)]
pub struct SnapshotIndex {
    // Indexed by slot.
    entries: Vec<Entry>,
    capacity: usize,
    clock: u64,
}

impl SnapshotIndex {
    /// An empty index over `capacity` slots.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity), capacity, clock: 0 }
    }

    /// Whether there is any slot to save into.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.capacity > 0
    }

    /// The deepest prefix of `hashes` that has a snapshot: how many pages it covers, and where it is.
    #[must_use]
    pub fn deepest(&self, hashes: &[BlockHash]) -> Option<(usize, SnapshotSlot)> {
        hashes.iter().enumerate().rev().find_map(|(index, hash)| Some((index + 1, self.position(hash)?)))
    }

    /// Marks a snapshot as used now.
    pub fn touch(&mut self, slot: SnapshotSlot) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(slot.0 as usize) {
            entry.last_used = self.clock;
        }
    }

    /// The slot to save the state after `hash` into; `None` if it is saved already or there are no slots.
    pub fn insert(&mut self, hash: BlockHash) -> Option<SnapshotSlot> {
        if let Some(slot) = self.position(&hash) {
            self.touch(slot);
            return None;
        }
        self.clock += 1;
        let entry = Entry { hash, last_used: self.clock };
        if self.entries.len() < self.capacity {
            self.entries.push(entry);
            return Some(SnapshotSlot(self.entries.len() as u32 - 1));
        }
        let (slot, oldest) = self.entries.iter_mut().enumerate().min_by_key(|(_, e)| e.last_used)?;
        *oldest = entry;
        Some(SnapshotSlot(slot as u32))
    }

    /// Forgets everything: the slots' content is no longer trusted.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    fn position(&self, hash: &BlockHash) -> Option<SnapshotSlot> {
        self.entries.iter().position(|e| e.hash == *hash).map(|slot| SnapshotSlot(slot as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n: u32) -> Vec<BlockHash> {
        let mut hashes: Vec<BlockHash> = Vec::new();
        for i in 0..n {
            hashes.push(BlockHash::chain(hashes.last(), &[i], &[]));
        }
        hashes
    }

    #[test]
    fn the_deepest_snapshot_of_a_prefix_is_found() {
        let hashes = chain(4);
        let mut index = SnapshotIndex::new(3);
        let shallow = index.insert(hashes[0]);
        let deep = index.insert(hashes[2]).unwrap();
        assert_ne!(shallow, Some(deep));
        assert_eq!(index.deepest(&hashes), Some((3, deep)));
        assert_eq!(index.deepest(&hashes[..2]), shallow.map(|slot| (1, slot)));
        assert_eq!(index.deepest(&[]), None);
    }

    #[test]
    fn the_least_recently_used_snapshot_is_replaced() {
        let hashes = chain(3);
        let mut index = SnapshotIndex::new(2);
        let first = index.insert(hashes[0]).unwrap();
        let second = index.insert(hashes[1]).unwrap();
        index.touch(first);
        assert_eq!(index.insert(hashes[2]), Some(second));
        assert_eq!(index.deepest(&hashes[..2]), Some((1, first)));
    }

    #[test]
    fn without_slots_nothing_is_saved() {
        assert_eq!(SnapshotIndex::new(0).insert(chain(1)[0]), None);
    }
}
