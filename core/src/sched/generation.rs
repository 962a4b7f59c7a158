//! The client's end of one request: its events, and the right to end it.

use std::sync::mpsc::Sender;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::error::EngineError;

use super::driver::Command;
use super::request::{Event, RequestId};

/// A running request. Dropping it aborts the request before the next step.
#[derive(Debug)]
pub struct Generation {
    id: RequestId,
    events: UnboundedReceiver<Event>,
    commands: Sender<Command>,
    has_ended: bool,
}

impl Generation {
    pub(super) fn new(id: RequestId, events: UnboundedReceiver<Event>, commands: Sender<Command>) -> Self {
        Self { id, events, commands, has_ended: false }
    }

    /// Identifies the request in this engine.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` after the last one, which is `Finished` or `Failed`.
    pub async fn next(&mut self) -> Option<Event> {
        if self.has_ended {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.take_note(event))
    }

    /// Like [`next`](Self::next), for threads outside an async runtime (inside one it panics).
    pub fn blocking_next(&mut self) -> Option<Event> {
        if self.has_ended {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.take_note(event))
    }

    /// An engine that vanishes without a word is a failure, not an end.
    fn take_note(&mut self, event: Option<Event>) -> Event {
        let event = event.unwrap_or_else(|| {
            Event::Failed(EngineError::Internal("the engine thread ended during a request".to_owned()))
        });
        self.has_ended = matches!(event, Event::Finished { .. } | Event::Failed(_));
        event
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.has_ended {
            // An engine that is gone has nothing to abort.
            let _ = self.commands.send(Command::Abort(self.id));
        }
    }
}
