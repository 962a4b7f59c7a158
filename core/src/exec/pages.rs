//! Copies of pages of keys and values.

use super::runner::device_error;
use super::{BlockId, ModelRunner, PageCopies};
use crate::error::EngineError;

impl PageCopies for ModelRunner {
    fn copy(&mut self, from: BlockId, to: BlockId) -> Result<(), EngineError> {
        self.device.copy_page(from.0 as usize, to.0 as usize).map_err(device_error)
    }
}
