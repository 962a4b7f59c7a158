//! Speculative decoding: guess a few tokens ahead, compute them all in one step, keep the right ones.
//!
//! A step costs nearly the same for one row as for a few, because it reads the same weights. [`config`] says who guesses and
//! how far, [`ngram`] is the guesser that needs no model (the other is the [`Drafter`](crate::exec::Drafter) of the runner),
//! [`verify`] decides what is kept, and [`stats`] counts. The scheduler puts drafts into steps and takes rejected ones back.

pub mod config;
pub mod ngram;
pub mod stats;
pub mod verify;

pub use config::{DraftMethod, SpeculativeConfig};
pub use stats::DraftStats;
pub use verify::Verification;
