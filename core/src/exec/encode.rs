//! The encoder: sources of new sequences become the cross-attention states that their rows read.

use super::runner::device_error;
use super::{Batch, BatchSource, ModelRunner};
use crate::device::{Entry, LOCAL_PAGE, StepContext};
use crate::error::EngineError;

impl ModelRunner {
    /// Encodes the sources of all sequences that start with this step. A source is encoded whole, beside as many others
    /// as the encoder's buffers hold.
    pub(super) fn encode(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let Some(max_rows) = self.encoder_rows else { return Ok(()) };
        let starting = batch.seqs.iter().filter(|s| s.num_computed == 0).filter_map(|s| s.source.as_ref());
        let (mut group, mut rows) = (Vec::new(), 0);
        for source in starting {
            let padded = source.token_ids.len().next_multiple_of(LOCAL_PAGE);
            if rows + padded > max_rows {
                self.encode_group(&group)?;
                (group, rows) = (Vec::new(), 0);
            }
            group.push(source);
            rows += padded;
        }
        self.encode_group(&group)
    }

    fn encode_group(&mut self, group: &[&BatchSource]) -> Result<(), EngineError> {
        if group.is_empty() {
            return Ok(());
        }
        self.source_ids.clear();
        self.sources.clear();
        for source in group {
            self.source_ids.extend_from_slice(&source.token_ids);
            self.sources.push(&source.block_table, 0, source.token_ids.len(), self.limits.block_size);
        }
        let context = StepContext {
            rows: self.source_ids.len(),
            token_ids: &self.source_ids,
            positions: &self.sources.positions,
            slots: &self.sources.slots,
            sequences: &self.sources.sequences(),
            ..StepContext::default()
        };
        self.device.run(Entry::Encoder, &context).map_err(device_error)
    }

    /// Rows of an output of the encoder after a step that encoded one group: `encoder_hidden`.
    ///
    /// # Errors
    /// The device failed.
    pub fn encoder_output(&self, name: &str, rows: usize) -> Result<Option<Vec<f32>>, EngineError> {
        self.device.read_output(Entry::Encoder, name, rows).map_err(device_error)
    }
}
