//! The engine as the server sees it.

use futures_util::future::BoxFuture;
use futures_util::stream;

use crate::error::EngineError;
use crate::sched::{EngineHandle, GenerateRequest};
use crate::server::{Backend, EventStream, Snapshot};

impl Backend for EngineHandle {
    fn submit(&self, request: GenerateRequest) -> Result<EventStream, EngineError> {
        let generation = Self::submit(self, request)?;
        Ok(Box::pin(stream::unfold(generation, |mut generation| async move {
            generation.next().await.map(|event| (event, generation))
        })))
    }

    fn snapshot(&self) -> Snapshot {
        let now = Self::snapshot(self);
        Snapshot {
            running: now.running,
            waiting: now.waiting,
            kv_usage: now.kv_usage,
            since_progress: now.last_progress.elapsed(),
            num_blocks: now.num_blocks,
            block_size: now.block_size,
            drafts: now.drafts,
            draining: now.draining,
            healthy: now.healthy,
        }
    }

    fn drain(&self) {
        Self::drain(self);
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(Self::drained(self))
    }
}
