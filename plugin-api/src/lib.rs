//! The only crate that a metrale model plugin depends on.
//!
//! A plugin *describes* a model: it reads `config.json`, then emits the ops of its entry points into a graph that the
//! core owns. The core does the rest: devices, weights, quantisation, caches, fusion, scheduling, serving.
//!
//! A plugin is native code with the rights of the process that loads it. Load only what you trust.
//!
//! # A complete plugin
//! ```
//! use metrale_plugin_api::prelude::*;
//!
//! /// Embedding, one linear layer with a residual, head: small, but a model.
//! struct Tiny { vocab: usize, hidden: usize }
//!
//! impl ModelLoader for Tiny {
//!     fn open(config: &Config) -> Result<Self> {
//!         Ok(Self { vocab: config.dim("vocab_size")?, hidden: config.dim("hidden_size")? })
//!     }
//!
//!     fn describe(&self) -> ModelInfo {
//!         ModelInfo { num_layers: 1, hidden_size: self.hidden, vocab_size: self.vocab, context_length: 128, ..Default::default() }
//!     }
//!
//!     fn embedding(&self, g: &Graph) -> Result<Value> {
//!         g.embedding(g.token_ids()?, g.weight("embed.weight", &[self.vocab, self.hidden], Role::Vocab)?)
//!     }
//!
//!     fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
//!         let w = Weights::root(&[""]).index("layers", index);
//!         let y = g.linear(x, g.weight(w.name("proj.weight"), &[self.hidden, self.hidden], Role::Replicated)?)?;
//!         g.add(x, y)
//!     }
//!
//!     fn norm(&self, _: &Graph, x: Value) -> Result<Value> {
//!         Ok(x)
//!     }
//!
//!     fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
//!         g.linear(x, g.weight("head.weight", &[self.vocab, self.hidden], Role::Vocab)?)
//!     }
//! }
//! ```
//! With `metrale_plugin_api::export_plugin!(Tiny);`, a `plugin.toml` and `crate-type = ["cdylib", "rlib"]` that is all.

#![deny(missing_docs)]

pub mod abi;
pub mod attr;
pub mod blocks;
pub mod config;
pub mod error;
pub mod export;
pub mod graph;
pub mod loader;
pub mod manifest;
pub mod ops;
pub mod rope;
pub mod weights;

pub use attr::{AttrValue, Attrs};
pub use config::Config;
pub use error::{PluginError, Result};
pub use graph::{Graph, Operand, State, Value, Weight};
pub use loader::{ModelInfo, ModelLoader, Mtp};

/// Everything that a model needs.
pub mod prelude {
    pub use crate::blocks::{NgramTables, VisionTower};
    pub use crate::config::Config;
    pub use crate::error::{PluginError, Result};
    pub use crate::graph::{Graph, State, Value, Weight};
    pub use crate::loader::{ModelInfo, ModelLoader, Mtp};
    pub use crate::ops::{
        Activation, Attention, ExpertActivation, Experts, Indexer, KvSpec, Mask, MeanKey, Moe, NgramHash,
        Pool, RotaryStyle, Router, Selection,
    };
    pub use crate::rope::Rope;
    pub use crate::weights::{Role, TensorName, Weights};
}
