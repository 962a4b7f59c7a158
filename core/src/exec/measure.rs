//! What `metrale bench step` asks of a runner.

use super::runner::{TEXT_OUTPUT, device_error};
use super::{Batch, ModelRunner};
use crate::device::{PartTime, Work};
use crate::error::EngineError;

impl ModelRunner {
    /// A step whose most likely next tokens are chosen on the device: one for each of the batch's `logits_rows`.
    ///
    /// # Errors
    /// As [`step`](super::StepRunner::step).
    pub fn step_greedy(&mut self, batch: &Batch, tokens: &mut Vec<u32>) -> Result<(), EngineError> {
        self.forward(batch)?;
        self.device.greedy(TEXT_OUTPUT, &batch.logits_rows, tokens).map_err(device_error)
    }

    /// What a decode step of so many sequences with contexts of so many tokens must read and compute.
    #[must_use]
    pub fn decode_work(&self, num_seqs: usize, context: usize) -> Work {
        self.device.work(num_seqs, context)
    }

    /// Times the parts of the last step one by one, each over all layers; empty if the device cannot.
    ///
    /// # Errors
    /// The device failed.
    pub fn time_parts(&mut self, context: usize) -> Result<Vec<PartTime>, EngineError> {
        self.device.time_parts(context).map_err(device_error)
    }

    /// Bytes per second that the device's memory gives, measured now.
    ///
    /// # Errors
    /// The device failed.
    pub fn memory_rate(&self) -> Result<f64, EngineError> {
        self.device.memory_rate().map_err(device_error)
    }
}
