//! Finding, checking, opening and choosing plugins.
//!
//! [`discover`] reads folders and manifests and opens nothing. A [`Candidate`] is one of them with its checks: [`elf`] looks
//! at the library file without running it, [`trust`] compares it with a lock, [`probe`] runs it in a child process,
//! [`embedded`] compares its manifest, [`library`] opens it in this one. [`registry`] says which plugin describes a model,
//! [`conformance`] runs the conformance kit. Every folder ends as exactly one of ready, refused and failed; nothing is
//! skipped in silence.
//!
//! A plugin is native code with the rights of this process.

pub mod candidate;
pub mod conformance;
pub mod discover;
pub mod elf;
pub mod embedded;
pub mod error;
pub mod library;
pub mod probe;
pub mod registry;
pub mod status;
pub mod trust;

pub use candidate::Candidate;
pub use error::PluginError;
pub use registry::{Overrides, Registry};
pub use status::Status;
