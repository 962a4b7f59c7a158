//! The engine's door: submit requests from anywhere, watch what it does, shut it down in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::error::EngineError;
use crate::exec::sample::{SamplingState, derive_seed};
use crate::exec::{RunnerLimits, StepRunner};
use crate::speculative::DraftStats;

use super::beams::Beams;
use super::config::SchedulerConfig;
use super::driver::{Command, Driver};
use super::generation::Generation;
use super::request::{GenerateRequest, RequestId};
use super::scheduler::{max_len, max_num_seqs};
use super::sequence::Sequence;
use super::validate::validate;

/// The engine's condition between two steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSnapshot {
    /// Sequences that hold KV pages.
    pub running: usize,
    /// Requests that wait for their first step, or for another after preemption.
    pub waiting: usize,
    /// Share of the KV pages that sequences hold, 0 to 1.
    pub kv_usage: f64,
    /// When the last step began, or the engine went idle. An old instant is alarming only while something runs.
    pub last_progress: Instant,
    /// KV pages that sequences can hold (page 0 is none of them).
    pub num_blocks: usize,
    /// KV pages that no sequence holds, those with a cached prefix included.
    pub num_free_blocks: usize,
    /// Tokens per KV page.
    pub block_size: usize,
    /// Sequences that lost their pages to others since the start.
    pub num_preemptions: u64,
    /// What speculative decoding has come to since the start.
    pub drafts: DraftStats,
    /// New requests are refused, running ones are finished.
    pub draining: bool,
    /// False after the runner panicked: nothing runs any more, the process should be restarted.
    pub healthy: bool,
}

/// What handles and the engine thread share.
#[derive(Debug)]
pub(super) struct Shared {
    snapshot: Mutex<EngineSnapshot>,
    draining: AtomicBool,
    healthy: AtomicBool,
    in_flight: watch::Sender<usize>,
    next_id: AtomicU64,
    seed: u64,
    eos_token_ids: Vec<u32>,
    limits: RunnerLimits,
    /// Most sequences of a step; 0 if the runner cannot copy pages.
    max_beams: usize,
}

impl Shared {
    pub(super) fn publish(&self, snapshot: EngineSnapshot) {
        *self.snapshot.lock() = snapshot;
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::SeqCst)
    }

    pub(super) fn mark_unhealthy(&self) {
        self.healthy.store(false, Ordering::SeqCst);
    }
}

/// Why an engine whose runner panicked takes no request.
pub(super) fn engine_failed() -> EngineError {
    EngineError::Unavailable("the engine has failed and must be restarted".to_owned())
}

/// Counts one request as in flight until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Shared>);

impl InFlight {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.in_flight.send_modify(|n| *n += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.send_modify(|n| *n -= 1);
    }
}

/// A running engine. Clones reach the same one; it stops when all handles and generations are gone.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

impl EngineHandle {
    /// Starts the engine thread, which owns `runner` from now on. Install a metrics recorder before this.
    #[must_use]
    pub fn spawn(mut runner: Box<dyn StepRunner>, config: SchedulerConfig) -> Self {
        let limits = runner.limits();
        if max_len(&limits) < limits.max_model_len {
            tracing::warn!(
                max_model_len = limits.max_model_len,
                kv_tokens = max_len(&limits),
                "the KV cache is smaller than the context length; sequences end when it is full"
            );
        }
        let num_blocks = limits.num_blocks.saturating_sub(1);
        let shared = Arc::new(Shared {
            snapshot: Mutex::new(EngineSnapshot {
                running: 0,
                waiting: 0,
                kv_usage: 0.0,
                last_progress: Instant::now(),
                num_blocks,
                num_free_blocks: num_blocks,
                block_size: limits.block_size,
                num_preemptions: 0,
                drafts: DraftStats::default(),
                draining: false,
                healthy: true,
            }),
            draining: AtomicBool::new(false),
            healthy: AtomicBool::new(true),
            in_flight: watch::Sender::new(0),
            next_id: AtomicU64::new(0),
            seed: config.seed.unwrap_or_else(rand::random),
            eos_token_ids: config.eos_token_ids.clone(),
            limits,
            max_beams: if runner.page_copies().is_some() { max_num_seqs(&config, &limits) } else { 0 },
        });
        let (commands, receiver) = channel();
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("metrale-engine".to_owned())
            .spawn(move || Driver::new(runner, &config, receiver, for_thread).run());
        if let Err(error) = thread {
            tracing::error!(%error, "the engine thread could not be started");
            shared.mark_unhealthy();
        }
        Self { shared, commands }
    }

    /// Hands a request to the engine and returns at once. Refuses what is invalid, what can never fit, and
    /// everything while draining.
    pub fn submit(&self, request: GenerateRequest) -> Result<Generation, EngineError> {
        // Counted before the look at `draining`: a request that `drained` does not see is refused here.
        let in_flight = InFlight::new(&self.shared);
        if !self.shared.is_healthy() {
            return Err(engine_failed());
        }
        if self.shared.draining.load(Ordering::SeqCst) {
            return Err(EngineError::Unavailable("the engine is shutting down".to_owned()));
        }
        validate(&request, &self.shared.limits, self.shared.max_beams)?;
        let id = RequestId(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
        let GenerateRequest { source, prompt, sampling, images, beams } = request;
        let seed = sampling.seed.unwrap_or_else(|| derive_seed(self.shared.seed, id.0));
        let state = SamplingState::new(sampling, seed, &prompt, &self.shared.eos_token_ids);
        let (events, receiver) = mpsc::unbounded_channel();
        let mut sequence = Sequence::new(id, (source, prompt), state, events, in_flight).with_images(images);
        sequence.beams = beams.map(Beams::new);
        self.commands.send(Command::Submit(Box::new(sequence))).map_err(|_| engine_failed())?;
        Ok(Generation::new(id, receiver, self.commands.clone()))
    }

    /// The condition after the last step.
    #[must_use]
    pub fn snapshot(&self) -> EngineSnapshot {
        EngineSnapshot {
            draining: self.shared.draining.load(Ordering::SeqCst),
            healthy: self.shared.is_healthy(),
            ..*self.shared.snapshot.lock()
        }
    }

    /// Refuses new requests from now on; those in flight are finished.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
    }

    /// Resolves when no request is in flight and all their pages are free.
    pub async fn drained(&self) {
        let mut in_flight = self.shared.in_flight.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = in_flight.wait_for(|n| *n == 0).await;
    }
}
