//! Slots of recurrent state: one per running sequence, held from admission to the end (or preemption).

/// A slot of the recurrent-state pool, held by one sequence for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateSlot(pub u32);

/// Hands out slots `0..num_slots`.
#[derive(Debug)]
pub struct StatePool {
    free: Vec<StateSlot>,
}

impl StatePool {
    /// All slots are free.
    #[must_use]
    pub fn new(num_slots: usize) -> Self {
        Self { free: (0..num_slots as u32).rev().map(StateSlot).collect() }
    }

    /// Takes a free slot. Its content is undefined: the runner clears it at position 0, or a snapshot overwrites it.
    pub fn allocate(&mut self) -> Option<StateSlot> {
        self.free.pop()
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: StateSlot) {
        debug_assert!(!self.free.contains(&slot), "released twice: {slot:?}");
        self.free.push(slot);
    }

    /// Slots that are free.
    #[must_use]
    pub fn num_free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_owner_at_a_time() {
        let mut pool = StatePool::new(2);
        let (a, b) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        assert_ne!(a, b);
        assert_eq!(pool.allocate(), None);
        pool.release(a);
        assert_eq!(pool.allocate(), Some(a));
    }
}
