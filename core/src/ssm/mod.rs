//! Recurrent state bookkeeping: which slot belongs to which sequence, and which snapshot belongs to which prefix.
//!
//! A KV prefix can be cut anywhere, recurrent state cannot: a prefix is only reusable where a snapshot was taken.

pub mod snapshot;
pub mod state_pool;

pub use snapshot::{SnapshotIndex, SnapshotSlot};
pub use state_pool::{StatePool, StateSlot};
