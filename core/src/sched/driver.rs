//! The engine thread: take commands, schedule, step, complete; sleep when there is nothing to do.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use crate::error::EngineError;
use crate::exec::{Batch, Logits, RunnerLimits, StepRunner};

use super::config::SchedulerConfig;
use super::engine::{Shared, engine_failed};
use super::plan::StepPlan;
use super::request::RequestId;
use super::scheduler::{DraftPlan, Scheduler};
use super::sequence::Sequence;

/// What handles and generations tell the engine thread.
#[derive(Debug)]
pub(super) enum Command {
    Submit(Box<Sequence>),
    Abort(RequestId),
}

pub(super) struct Driver {
    runner: Box<dyn StepRunner>,
    limits: RunnerLimits,
    scheduler: Scheduler,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    plan: StepPlan,
    logits: Logits,
    draft_plan: DraftPlan,
    drafts: Vec<u32>,
}

impl Driver {
    pub(super) fn new(
        mut runner: Box<dyn StepRunner>,
        config: &SchedulerConfig,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Self {
        let limits = runner.limits();
        let num_snapshot_slots = runner.state_snapshots().map_or(0, |s| s.num_slots());
        let mut scheduler = Scheduler::new(config, &limits, num_snapshot_slots);
        if scheduler.needs_drafter() && runner.drafter().is_none() {
            tracing::error!("the runner has no drafter: nothing is drafted");
            scheduler.stop_drafting();
        }
        Self {
            runner,
            limits,
            scheduler,
            commands,
            shared,
            plan: StepPlan::default(),
            logits: Logits::default(),
            draft_plan: DraftPlan::default(),
            drafts: Vec::new(),
        }
    }

    /// Serves until all handles and generations are gone.
    pub(super) fn run(mut self) {
        while self.take_commands() {
            self.scheduler.schedule(&mut self.plan);
            self.report();
            self.step();
        }
    }

    /// Takes all commands that are there, and waits for some when there is nothing to run. False when no more can
    /// come.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Disconnected) if self.scheduler.is_idle() => return false,
                Err(_) if !self.scheduler.is_idle() => return true,
                Err(_) => {
                    self.report();
                    let Ok(command) = self.commands.recv() else { return false };
                    self.obey(command);
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(seq) if self.shared.is_healthy() => self.scheduler.submit(*seq),
            Command::Submit(seq) => self.scheduler.refuse(*seq, engine_failed()),
            Command::Abort(id) => self.scheduler.abort(id),
        }
    }

    fn report(&mut self) {
        let shared = &self.shared;
        self.scheduler.report(|snapshot| shared.publish(snapshot));
    }

    fn step(&mut self) {
        if self.plan.is_empty() {
            let error = EngineError::Internal("requests are waiting and none of them fits".to_owned());
            self.scheduler.fail_all(&error);
            return;
        }
        match self.guarded(Self::compute) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::error!(%error, num_seqs = self.plan.seqs.len(), "a step failed; its requests end");
                self.scheduler.fail_step(&self.plan, &error);
                return;
            }
            None => return,
        }
        self.scheduler.complete(&mut self.plan, &self.logits, &mut self.draft_plan);
        if !self.plan.saves.is_empty()
            && let Some(Err(error)) = self.guarded(Self::save_snapshots)
        {
            tracing::error!(%error, "saving recurrent state failed; all snapshots are dropped");
            self.scheduler.forget_snapshots();
        }
        self.draft();
    }

    /// Prepares drafts for the next step. Without them it computes the same, so a drafter that fails ends no request.
    fn draft(&mut self) {
        if !self.scheduler.plan_drafts(&mut self.draft_plan) {
            return;
        }
        match self.guarded(Self::compute_drafts) {
            Some(Ok(())) => self.scheduler.take_drafts(&self.draft_plan, &self.drafts),
            Some(Err(error)) => {
                tracing::error!(%error, "drafting failed; from now on nothing is drafted");
                self.scheduler.stop_drafting();
            }
            None => {}
        }
    }

    /// Runs something of the runner's; `None` if it panicked, in which case every request has failed.
    fn guarded(&mut self, work: fn(&mut Self) -> Result<(), EngineError>) -> Option<Result<(), EngineError>> {
        // After a panic the runner is never called again, so its broken invariants are never seen.
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(result) => Some(result),
            Err(payload) => {
                let error =
                    EngineError::Internal(format!("the runner panicked: {}", panic_message(&*payload)));
                tracing::error!(%error, "all requests end and no new ones are taken; restart the engine");
                self.shared.mark_unhealthy();
                self.scheduler.fail_all(&error);
                None
            }
        }
    }

    fn compute(&mut self) -> Result<(), EngineError> {
        if !self.plan.copies.is_empty()
            && let Some(pages) = self.runner.page_copies()
        {
            for &(from, to) in &self.plan.copies {
                pages.copy(from, to)?;
            }
        }
        if !self.plan.restores.is_empty()
            && let Some(snapshots) = self.runner.state_snapshots()
        {
            for &(from, to) in &self.plan.restores {
                snapshots.restore(from, to)?;
            }
        }
        self.runner.step(&self.plan.batch, &mut self.logits)?;
        check_shape(&self.logits, &self.plan.batch, &self.limits)
    }

    fn compute_drafts(&mut self) -> Result<(), EngineError> {
        match self.runner.drafter() {
            Some(drafter) => drafter.draft(&self.draft_plan.batch, &mut self.drafts),
            None => Err(EngineError::Internal("the runner's drafter is gone".to_owned())),
        }
    }

    fn save_snapshots(&mut self) -> Result<(), EngineError> {
        if let Some(snapshots) = self.runner.state_snapshots() {
            for &(from, to) in &self.plan.saves {
                snapshots.save(from, to)?;
            }
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.mark_unhealthy();
    }
}

/// A runner that computed other rows than it was asked for must not be believed.
fn check_shape(logits: &Logits, batch: &Batch, limits: &RunnerLimits) -> Result<(), EngineError> {
    let expected = batch.logits_rows.len() * limits.vocab_size;
    if logits.vocab_size == limits.vocab_size && logits.data.len() == expected {
        return Ok(());
    }
    Err(EngineError::Internal(format!(
        "the runner returned {} logits in rows of {}; expected {} rows of {}",
        logits.data.len(),
        logits.vocab_size,
        batch.logits_rows.len(),
        limits.vocab_size
    )))
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
