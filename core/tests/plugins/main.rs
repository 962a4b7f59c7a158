//! Plugins as real shared libraries: made by the scaffold, by the fixtures in `tests/abi`, and broken in every way.
//!
//! Everything is built by cargo, once, into a target directory of its own; later runs only check that it is fresh.
#![allow(clippy::unwrap_used, clippy::panic)]

mod boundary;
mod broken;
mod commands;
mod damage;
mod documents;
mod files;
mod future;
mod scaffold;
#[path = "../../../tests/abi/tagging.rs"]
// The header is aligned by construction.
#[allow(unsafe_code, clippy::cast_ptr_alignment)]
mod tagging;
mod workshop;

/// The host's allocator, which is not the plugins': whoever frees the other's memory ends the tests.
#[global_allocator]
static ALLOCATOR: tagging::Tagging<0x68_6f_73_74> = tagging::Tagging;
