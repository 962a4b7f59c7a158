//! Checkpoint files to weights in memory.
