//! Copies of pages of keys and values.

use super::{BlockId, ModelRunner, PageCopies};
use crate::error::EngineError;

impl PageCopies for ModelRunner {
    fn copy(&mut self, from: BlockId, to: BlockId) -> Result<(), EngineError> {
        self.device.states.copy_page(from.0 as usize, to.0 as usize).map_err(|error| EngineError::Device {
            op: "the copy of a KV page".to_owned(),
            message: error.to_string(),
        })
    }
}
