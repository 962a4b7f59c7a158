//! Time between two points of the stream.

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;

use super::device::Cuda;
use crate::error::Result;

/// Measures work on the stream, as the device sees it.
#[derive(Debug)]
pub struct Timer {
    start: CudaEvent,
}

impl Timer {
    /// Starts after the work so far.
    ///
    /// # Errors
    /// The driver fails.
    pub fn start(cuda: &Cuda) -> Result<Self> {
        let start = cuda.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(Self { start })
    }

    /// Waits for the work since, and returns its milliseconds.
    ///
    /// # Errors
    /// The driver or the work fails.
    pub fn stop(self, cuda: &Cuda) -> Result<f32> {
        let end = cuda.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(self.start.elapsed_ms(&end)?)
    }
}
