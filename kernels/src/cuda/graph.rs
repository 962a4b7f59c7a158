//! Recorded work that is launched as a whole.

use std::sync::atomic::Ordering;

use cudarc::driver::result::{graph, stream};
use cudarc::driver::sys;

use super::device::Cuda;
use crate::error::{KernelError, Result};

/// A recorded sequence of launches and copies on the device. Launching it costs about as much as launching one kernel.
#[derive(Debug)]
pub struct Graph {
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    owner: u32,
}

// SAFETY: the driver's handles may be used from any thread that has the context bound; `replay` binds it.
unsafe impl Send for Graph {}

impl Cuda {
    /// Records what `f` puts on the stream, instead of running it. Shapes and addresses are fixed; contents are not.
    ///
    /// Run the same work once before: while work is recorded nothing can be allocated, copied from or to the host, or
    /// waited for.
    ///
    /// # Errors
    /// `f` fails or does something that cannot be recorded.
    pub fn record(&self, f: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.context.bind_to_thread()?;
        let handle = self.stream.cu_stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists; recording ends below on every path.
        unsafe { stream::begin_capture(handle, mode)? };
        self.recording.store(true, Ordering::Relaxed);
        let done = f();
        self.recording.store(false, Ordering::Relaxed);
        // SAFETY: recording was begun above.
        let recorded = unsafe { stream::end_capture(handle) };
        let graph = match (done, recorded) {
            (Ok(()), recorded) => recorded?,
            (Err(error), recorded) => {
                if let Some(graph) = recorded.ok().filter(|graph| !graph.is_null()) {
                    // SAFETY: nobody else has the handle.
                    unsafe { graph::destroy(graph)? };
                }
                return Err(error);
            }
        };
        // SAFETY: the graph is complete.
        let executable = unsafe { graph::instantiate(graph, sys::CUgraphInstantiate_flags(0))? };
        Ok(Graph { graph, executable, owner: self.id() })
    }

    /// Puts a recorded graph on the stream.
    ///
    /// # Safety
    /// Every buffer that the recorded work used still exists, and is not borrowed in a way that its use would break.
    ///
    /// # Errors
    /// The graph belongs to another device, or the driver fails.
    pub unsafe fn replay(&self, graph: &Graph) -> Result<()> {
        self.ensure_owner("replay", graph.owner)?;
        self.context.bind_to_thread()?;
        // SAFETY: the graph is complete, and the caller promises that its memory exists.
        unsafe { graph::launch(graph.executable, self.stream.cu_stream())? };
        Ok(())
    }

    /// Refuses allocations while work is recorded: they would belong to the graph.
    pub(super) fn ensure_not_recording(&self) -> Result<()> {
        if self.recording.load(Ordering::Relaxed) {
            let reason = "memory cannot be allocated while work is recorded; run the work once before";
            return Err(KernelError::Device { reason: reason.to_owned() });
        }
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A graph that is still running is destroyed when it is done. Nobody can act on a failure here.
        // SAFETY: the handles are this graph's own.
        let _ = unsafe { graph::exec_destroy(self.executable) };
        // SAFETY: as above.
        let _ = unsafe { graph::destroy(self.graph) };
    }
}
