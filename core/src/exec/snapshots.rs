//! Copies of recurrent state: the slots behind those of running sequences.

use super::runner::device_error;
use super::{ModelRunner, StateSlot, StateSnapshots};
use crate::error::EngineError;
use crate::ssm::SnapshotSlot;

impl ModelRunner {
    /// Where a snapshot lies among the slots of the states.
    fn place(&self, snapshot: SnapshotSlot) -> Result<usize, EngineError> {
        let index = snapshot.0 as usize;
        if index < self.num_snapshots {
            return Ok(self.limits.max_num_seqs + index);
        }
        Err(EngineError::Internal(format!("state snapshot {index} of {}", self.num_snapshots)))
    }

    fn running(&self, slot: StateSlot) -> Result<usize, EngineError> {
        let index = slot.0 as usize;
        if index < self.limits.max_num_seqs {
            return Ok(index);
        }
        Err(EngineError::Internal(format!("state slot {index} of {}", self.limits.max_num_seqs)))
    }
}

impl StateSnapshots for ModelRunner {
    fn num_slots(&self) -> usize {
        self.num_snapshots
    }

    fn save(&mut self, from: StateSlot, to: SnapshotSlot) -> Result<(), EngineError> {
        let (from, to) = (self.running(from)?, self.place(to)?);
        self.device.copy_slot(from, to).map_err(device_error)
    }

    fn restore(&mut self, from: SnapshotSlot, to: StateSlot) -> Result<(), EngineError> {
        let (from, to) = (self.place(from)?, self.running(to)?);
        self.device.copy_slot(from, to).map_err(device_error)
    }
}
