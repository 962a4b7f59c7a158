//! Steps that were recorded, to be launched as a whole.
//!
//! Steps in which every sequence has one row are filled up to one of a few sizes. What was recorded for a size serves all
//! steps of that size: sequences that join or leave only change the lists that it reads.

#![allow(unsafe_code)] // Replays of recorded work.

use std::collections::HashMap;

use metrale_kernels::KernelError;
use metrale_kernels::cuda::{Cuda, Graph, Timer};

use crate::device::{Entry, LaunchError};

/// Rows up to which sizes are powers of two; above, they are multiples of it. As many rows as a page of keys and values
/// has tokens, at most, fill up a step.
const SMALL: usize = 8;

/// The size that a step of so many rows is filled up to.
pub(super) fn bucket(rows: usize) -> usize {
    if rows <= SMALL { rows.next_power_of_two() } else { rows.next_multiple_of(SMALL) }
}

/// What was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// An entry point.
    Entry(Entry),
    /// The head over the rows of an entry point.
    Head(Entry),
    /// The head and its most likely tokens.
    Greedy(Entry),
}

/// Recorded work by size. It uses buffers of the plans, states and lists of the device that owns this.
#[derive(Debug)]
pub(super) struct Graphs {
    recorded: HashMap<(Part, usize), Graph>,
    enabled: bool,
}

impl Graphs {
    pub(super) fn new(enabled: bool) -> Self {
        Self { recorded: HashMap::new(), enabled }
    }

    /// How many were recorded.
    pub(super) fn len(&self) -> usize {
        self.recorded.len()
    }

    /// Runs `work`, the first time launch by launch, later as it was recorded then.
    pub(super) fn run(
        &mut self,
        cuda: &Cuda,
        (part, size): (Part, usize),
        mut work: impl FnMut() -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        if !self.enabled {
            return work();
        }
        if let Some(graph) = self.recorded.get(&(part, size)) {
            // SAFETY: the buffers of plans, states and lists live as long as the device that owns this, are never
            // replaced, and are not in use otherwise: the stream runs one work after another.
            unsafe { cuda.replay(graph)? };
            return Ok(());
        }
        work()?;
        let recorded = cuda
            .record(|| work().map_err(|e| KernelError::Unsupported { op: "record", reason: e.to_string() }));
        match recorded {
            Ok(graph) => {
                self.recorded.insert((part, size), graph);
            }
            Err(error) => {
                tracing::warn!(%error, ?part, size, "steps cannot be recorded; they run launch by launch from now on");
                self.enabled = false;
            }
        }
        Ok(())
    }
}

/// Records `work` and gives the seconds of one replay, over so many.
pub(super) fn time(
    cuda: &Cuda,
    repetitions: usize,
    mut work: impl FnMut() -> Result<(), LaunchError>,
) -> Result<f64, LaunchError> {
    let graph =
        cuda.record(|| work().map_err(|e| KernelError::Unsupported { op: "record", reason: e.to_string() }))?;
    // SAFETY: what the work used still exists; nothing else runs meanwhile.
    unsafe { cuda.replay(&graph)? };
    let timer = Timer::start(cuda)?;
    for _ in 0..repetitions {
        // SAFETY: as above.
        unsafe { cuda.replay(&graph)? };
    }
    Ok(f64::from(timer.stop(cuda)?) / 1e3 / repetitions as f64)
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn few_rows_fill_up_a_step() {
        let sizes: Vec<usize> = [1, 2, 3, 4, 5, 8, 9, 16, 17, 250].into_iter().map(bucket).collect();
        assert_eq!(sizes, [1, 2, 4, 4, 8, 8, 16, 16, 24, 256]);
        assert!((1..600).all(|rows| (rows..rows + 8).contains(&bucket(rows))));
    }
}
