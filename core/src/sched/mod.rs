//! Scheduling: who runs in the next step, and the engine thread that drives it.
//!
//! [`engine`] is the door: submit a request, receive its events. Behind it, one thread owns the runner and repeats
//! take commands → schedule → step → complete; between two steps everything is consistent, so requests come, go and
//! fail only there.

pub mod config;
pub mod engine;
pub mod request;

mod beams;
mod drafting;
mod driver;
mod generation;
mod metrics;
mod plan;
mod scheduler;
mod sequence;
mod validate;

pub use crate::exec::SequenceImages;
pub use crate::kv::Media;
pub use config::SchedulerConfig;
pub use engine::{EngineHandle, EngineSnapshot};
pub use generation::Generation;
pub use request::{
    BeamParams, EarlyStopping, Event, FinishReason, GenerateRequest, Hypothesis, PositionLogprobs, RequestId,
    SamplingParams, TokenLogprob,
};
