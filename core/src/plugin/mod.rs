//! Finding, checking, opening and choosing plugins.
//!
//! [`discover`] reads folders and manifests and opens nothing, [`elf`] looks at a library file without running it, [`trust`]
//! compares it with a lock, [`probe`] runs it in a child process, [`library`] opens it in this one, [`registry`] says which
//! plugin describes a model, [`conformance`] runs the conformance kit. Every folder ends as exactly one of ready, refused and failed; nothing is skipped in silence.
//!
//! A plugin is native code with the rights of this process.

pub mod conformance;
pub mod discover;
pub mod elf;
pub mod error;
pub mod library;
pub mod probe;
pub mod registry;
pub mod status;
pub mod trust;

pub use error::PluginError;
pub use registry::{Candidate, Overrides, Registry};
pub use status::Status;
