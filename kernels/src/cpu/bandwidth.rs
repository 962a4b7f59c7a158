//! The limit that decoding runs into: how fast the workers read memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::Cpu;

/// More than the last-level cache of common processors.
const BUFFER_BYTES: usize = 512 << 20;
/// Bytes that a worker takes at a time.
const GRAIN_BYTES: usize = 1 << 20;
const PASSES: usize = 4;

/// Bytes per second at which all workers together read a buffer that no cache holds; the best of a few passes.
#[must_use]
pub fn read_bandwidth(cpu: &Cpu) -> f64 {
    let buffer = vec![1u64; BUFFER_BYTES / size_of::<u64>()];
    let grain = GRAIN_BYTES / size_of::<u64>();
    let pass = || {
        let start = Instant::now();
        let sum = AtomicU64::new(0);
        cpu.pool().for_each(buffer.len(), grain, |range| {
            // Independent sums, so that additions do not wait for each other.
            let mut lanes = [0u64; 16];
            for words in buffer[range].as_chunks::<16>().0 {
                lanes.iter_mut().zip(words).for_each(|(lane, word)| *lane = lane.wrapping_add(*word));
            }
            sum.fetch_add(lanes.iter().sum(), Ordering::Relaxed);
        });
        black_box(sum.into_inner());
        BUFFER_BYTES as f64 / start.elapsed().as_secs_f64()
    };
    (0..PASSES).map(|_| pass()).fold(0.0, f64::max)
}
