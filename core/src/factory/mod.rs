//! The model factory: a model directory or file becomes a runner.

mod runner;

pub use runner::{BuildError, BuiltModel, ModelFacts, RunnerOptions, build_runner};
