//! An engine that says what it is told to, at the pace it is told to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use metrale_core::EngineError;
use metrale_core::sched::{Event, FinishReason, GenerateRequest, Hypothesis, PositionLogprobs, TokenLogprob};
use metrale_core::server::{Backend, EventStream, Snapshot};
use metrale_core::speculative::DraftStats;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::text::{EOS, bytes};

/// What has happened to an engine's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) running: usize,
    pub(crate) finished: usize,
    pub(crate) aborted: usize,
}

pub(crate) struct FakeEngine {
    reply: Vec<u32>,
    /// Fails after this many tokens.
    fail_after: Option<usize>,
    /// One permit per token; closed means no limit.
    pace: Arc<Semaphore>,
    counts: watch::Sender<Counts>,
    state: Mutex<State>,
}

struct State {
    requests: Vec<GenerateRequest>,
    draining: bool,
    since_progress: Duration,
    healthy: bool,
}

impl FakeEngine {
    fn new(reply: &str, fail_after: Option<usize>) -> Self {
        let state =
            State { requests: Vec::new(), draining: false, since_progress: Duration::ZERO, healthy: true };
        Self {
            reply: bytes(reply),
            fail_after,
            pace: Arc::new(Semaphore::new(0)),
            counts: watch::Sender::default(),
            state: Mutex::new(state),
        }
    }

    /// Answers every request with `reply` and an end-of-sequence token.
    pub(crate) fn replying(reply: &str) -> Arc<Self> {
        let engine = Self::new(reply, None);
        engine.pace.close();
        Arc::new(engine)
    }

    /// Like [`FakeEngine::replying`], one token for each permit.
    pub(crate) fn stepping(reply: &str) -> Arc<Self> {
        Arc::new(Self::new(reply, None))
    }

    /// Fails every request after `tokens` tokens.
    pub(crate) fn failing(reply: &str, tokens: usize) -> Arc<Self> {
        let engine = Self::new(reply, Some(tokens));
        engine.pace.close();
        Arc::new(engine)
    }

    /// Lets `tokens` more tokens out.
    pub(crate) fn step(&self, tokens: usize) {
        self.pace.add_permits(tokens);
    }

    /// Lets everything out.
    pub(crate) fn run_free(&self) {
        self.pace.close();
    }

    pub(crate) fn set_progress(&self, since_progress: Duration) {
        self.state.lock().unwrap().since_progress = since_progress;
    }

    pub(crate) fn break_down(&self) {
        self.state.lock().unwrap().healthy = false;
    }

    /// Every request so far.
    pub(crate) fn requests(&self) -> Vec<GenerateRequest> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Waits until the counts satisfy `condition`.
    pub(crate) async fn until(&self, condition: impl FnMut(&Counts) -> bool) -> Counts {
        *self.counts.subscribe().wait_for(condition).await.unwrap()
    }
}

impl Backend for FakeEngine {
    fn submit(&self, request: GenerateRequest) -> Result<EventStream, EngineError> {
        let mut state = self.state.lock().unwrap();
        if state.draining {
            return Err(EngineError::Unavailable("the engine is shutting down".to_owned()));
        }
        state.requests.push(request.clone());
        let (sender, receiver) = mpsc::unbounded_channel();
        self.counts.send_modify(|counts| counts.running += 1);
        let (pace, counts) = (self.pace.clone(), self.counts.clone());
        let events = script(&request, &self.reply, self.fail_after);
        tokio::spawn(async move {
            let finished = play(events, &sender, &pace).await;
            counts.send_modify(|counts| {
                counts.running -= 1;
                *(if finished { &mut counts.finished } else { &mut counts.aborted }) += 1;
            });
        });
        Ok(Box::pin(UnboundedReceiverStream::new(receiver)))
    }

    fn snapshot(&self) -> Snapshot {
        let state = self.state.lock().unwrap();
        Snapshot {
            running: self.counts.borrow().running,
            waiting: 0,
            kv_usage: 0.25,
            since_progress: state.since_progress,
            num_blocks: 100,
            block_size: 16,
            drafts: DraftStats::default(),
            draining: state.draining,
            healthy: state.healthy,
        }
    }

    fn drain(&self) {
        self.state.lock().unwrap().draining = true;
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        self.until(|counts| counts.running == 0).map(|_| ()).boxed()
    }
}

/// Sends the events; false if the receiver went away before the last one.
async fn play(events: Vec<Event>, sender: &mpsc::UnboundedSender<Event>, pace: &Semaphore) -> bool {
    for event in events {
        if matches!(event, Event::Token { .. }) {
            tokio::select! {
                permit = pace.acquire() => if let Ok(permit) = permit { permit.forget() },
                () = sender.closed() => return false,
            }
        }
        if sender.send(event).is_err() {
            return false;
        }
    }
    true
}

fn script(request: &GenerateRequest, reply: &[u32], fail_after: Option<usize>) -> Vec<Event> {
    let sampling = &request.sampling;
    let mut events = Vec::new();
    if let Some(beams) = request.beams {
        return hypotheses(reply, beams.num_return);
    }
    if let Some(k) = sampling.prompt_logprobs {
        let position = |(i, &token)| (i > 0).then(|| position(token, k));
        events.push(Event::PromptLogprobs(request.prompt.iter().enumerate().map(position).collect()));
    }
    let mut reason = FinishReason::Length;
    let mut tokens = reply.iter().copied().chain(std::iter::repeat(EOS));
    for n in 0..sampling.max_tokens {
        if fail_after == Some(n) {
            let (op, message) = ("linear/1".to_owned(), "out of memory".to_owned());
            events.push(Event::Failed(EngineError::Device { op, message }));
            return events;
        }
        let token = tokens.next().unwrap_or(EOS);
        let logprobs = sampling.logprobs.map(|k| position(token, k));
        events.push(Event::Token { token, logprobs });
        if sampling.stop_token_ids.contains(&token) {
            reason = FinishReason::Stop { token: Some(token) };
            break;
        }
        if token == EOS && !sampling.ignore_eos {
            reason = FinishReason::Stop { token: None };
            break;
        }
    }
    events.push(Event::Finished { reason, num_cached_tokens: 3 });
    events
}

/// The reply with a number behind it, the better ones first.
fn hypotheses(reply: &[u32], num: usize) -> Vec<Event> {
    let hypothesis = |i: usize| Hypothesis {
        tokens: [reply, &bytes(&i.to_string()), &[EOS]].concat(),
        score: -0.5 - i as f32,
        ended_by: Some(EOS),
    };
    let reason = FinishReason::Stop { token: None };
    vec![
        Event::Hypotheses((0..num).map(hypothesis).collect()),
        Event::Finished { reason, num_cached_tokens: 3 },
    ]
}

/// The token itself is most likely, its neighbours follow.
fn position(token: u32, k: u32) -> PositionLogprobs {
    let entry = |rank: u32| TokenLogprob {
        token: (token + rank) % EOS.max(token + 1),
        logprob: -0.5 - rank as f32,
        rank: rank + 1,
    };
    PositionLogprobs { chosen: entry(0), top: (0..k).map(entry).collect() }
}
