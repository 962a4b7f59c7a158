//! Recurrent state: slots and snapshots.
