//! The metrale inference engine.
//!
//! # Where is the forward pass?
//! In the plugin it is *described* (`plugins/llama/src/lib.rs`); here it *runs*: [`exec::runner`], `ModelRunner::step`.
//!
//! # Map, from the outside in
//! [`server`] (HTTP) → [`sched`] (who runs in the next step) → [`speculative`] (guessing tokens ahead) → [`exec`] (one
//! step) → [`lower`] (graph to plan) → [`weights`], [`kv`], [`ssm`] (what a step reads and writes) → [`device`].
//! [`plugin`] finds and opens plugins, [`factory`] turns a model directory into a runner, [`text`] turns strings into
//! tokens and back, [`images`] pictures into patches, [`translation`] knows languages.

pub mod cli;
pub mod config;
pub mod device;
pub mod error;
pub mod exec;
pub mod factory;
pub mod images;
pub mod kv;
pub mod lower;
pub mod plugin;
pub mod sched;
pub mod server;
pub mod speculative;
pub mod ssm;
pub mod text;
pub mod translation;
pub mod weights;

pub use error::EngineError;
