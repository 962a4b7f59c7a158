//! Scheduling: who runs in the next step, and the engine thread that drives it.

pub mod request;

pub use request::{
    Event, FinishReason, GenerateRequest, PositionLogprobs, RequestId, SamplingParams, TokenLogprob,
};
