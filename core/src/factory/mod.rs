//! The model factory: a model directory or file becomes a runner.

mod attrs;
mod runner;

pub use attrs::open_attrs;
pub use runner::{BuildError, BuiltModel, ModelFacts, RunnerOptions, build_runner};
