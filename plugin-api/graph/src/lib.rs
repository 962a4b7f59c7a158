//! The traced graph of a model: what a plugin describes, in the form that everything else works on.
//!
//! [`host`] opens a plugin's model and receives its ops, [`Builder`] checks each against its [`schema`], [`Graph`] is the
//! result. [`checkpoint`] reads the headers of weight files, [`resolve`] matches a graph's weights with them.
//! The core, the reference interpreter and the conformance kit build on this crate; plugins do not link it.

#![forbid(unsafe_code)]

mod builder;
pub mod checkpoint;
pub mod dim;
pub mod doc;
pub mod dump;
pub mod graph;
pub mod hash;
pub mod host;
pub mod images;
mod ops;
pub mod resolve;
pub mod schema;
pub mod verify;

pub use builder::Builder;
pub use graph::{Graph, KvLayout, Node, Sharding, Source, StateDecl, StateKind, ValueInfo, ValueKind};
pub use host::{OpenModel, PluginFailure};
pub use metrale_plugin_api::abi::ValueId;
pub use metrale_plugin_api::{AttrValue, Attrs};
