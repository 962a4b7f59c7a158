//! The only crate that a metrale model plugin depends on.
//!
//! A plugin *describes* a model: it reads `config.json`, then emits the ops of its entry points into a graph that the
//! core owns. The core does the rest: devices, weights, quantisation, caches, fusion, scheduling, serving.
//!
//! A plugin is native code with the rights of the process that loads it. Load only what you trust.
//!
//! Frozen at 1.0.0 for the tests in `core/tests/plugins`, with only the ops that those need. Never edit it.

#![deny(missing_docs)]

pub mod abi;
pub mod attr;
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
    pub use crate::config::Config;
    pub use crate::error::{PluginError, Result};
    pub use crate::graph::{Graph, State, Value, Weight};
    pub use crate::loader::{ModelInfo, ModelLoader, Mtp};
    pub use crate::ops::{Attention, KvSpec, Mask, RotaryStyle};
    pub use crate::rope::Rope;
    pub use crate::weights::{Role, TensorName, Weights};
}
