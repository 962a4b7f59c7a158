//! Hidden states to logits.

use super::Logits;
use super::runner::{Device, device_error};
use crate::device::cpu::{CpuPlan, StepContext};
use crate::error::EngineError;

/// Logits of the wanted rows of `hidden: [T, width]`, in as many passes as the head's buffers ask for.
pub(super) fn compute_logits(
    head: &mut CpuPlan,
    device: &mut Device,
    (hidden, width): (&[f32], usize),
    wanted: &[usize],
    logits: &mut Logits,
) -> Result<(), EngineError> {
    let (rows, vocab_size) = (head.max_rows(), logits.vocab_size);
    logits.data.resize(wanted.len() * vocab_size, 0.0);
    for (wanted, out) in wanted.chunks(rows).zip(logits.data.chunks_mut(rows * vocab_size)) {
        let input = head.input_mut("hidden", wanted.len()).unwrap_or(&mut []);
        for (&row, input) in wanted.iter().zip(input.chunks_exact_mut(width)) {
            input.copy_from_slice(&hidden[row * width..(row + 1) * width]);
        }
        let context = StepContext { rows: wanted.len(), ..StepContext::default() };
        head.run(&device.cpu, &mut device.states, device.numerics, &context).map_err(device_error)?;
        out.copy_from_slice(head.output("logits", wanted.len()).unwrap_or(&[]));
    }
    Ok(())
}
