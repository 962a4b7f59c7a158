//! Server-sent events: the chunks of a running request, keep-alive comments while it waits, `[DONE]` at the end.
//!
//! A failure after the first byte is an error frame followed by `[DONE]`. When the client goes away the response is
//! dropped, and with it the running choices.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderName;
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;

use super::generation::Delta;
use super::request::{Choices, StreamUsage};

const KEEP_ALIVE: Duration = Duration::from_secs(10);
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Turns deltas into the chunks of one endpoint.
pub(super) trait ChunkShape: Send + 'static {
    /// What every chunk repeats, around these choices.
    fn chunk(&self, choices: &[Value]) -> Value;

    /// The chunks for a delta: usually one, two where something comes before the first token.
    fn chunks(&mut self, choice: usize, delta: Delta) -> Vec<Value>;
}

struct Running<S> {
    shape: S,
    usage: StreamUsage,
    /// `None` after the last chunk.
    choices: Option<Choices>,
    ready: VecDeque<String>,
}

/// The response that streams `choices`.
pub(super) fn respond<S: ChunkShape>(shape: S, usage: StreamUsage, choices: Choices) -> Response {
    let running = Running { shape, usage, choices: Some(choices), ready: VecDeque::new() };
    let events = unfold(running, |mut running| async move {
        let data = running.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(data)), running))
    });
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Proxies must pass chunks on at once.
    ([(CACHE_CONTROL, "no-cache"), (ACCEL_BUFFERING, "no")], sse).into_response()
}

impl<S: ChunkShape> Running<S> {
    /// The data of the next frame.
    async fn next(&mut self) -> Option<String> {
        while self.ready.is_empty() {
            let choices = self.choices.as_mut()?;
            match choices.next().await {
                Some(Ok((choice, delta))) => self.push_delta(choice, delta),
                Some(Err(error)) => {
                    tracing::warn!(body = %error.body(), "request failed while streaming");
                    self.ready.push_back(error.body().to_string());
                    self.end();
                }
                None => {
                    if self.usage.include {
                        let mut chunk = self.shape.chunk(&[]);
                        chunk["usage"] = choices.usage.total();
                        self.ready.push_back(chunk.to_string());
                    }
                    self.end();
                }
            }
        }
        self.ready.pop_front()
    }

    fn push_delta(&mut self, choice: usize, delta: Delta) {
        for mut chunk in self.shape.chunks(choice, delta) {
            if self.usage.include {
                let counts = self.choices.as_ref().filter(|_| self.usage.continuous);
                chunk["usage"] = counts.map_or(Value::Null, |choices| choices.usage.of_choice(choice));
            }
            self.ready.push_back(chunk.to_string());
        }
    }

    fn end(&mut self) {
        self.ready.push_back("[DONE]".to_owned());
        self.choices = None;
    }
}
