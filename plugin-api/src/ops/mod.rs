//! The op set as methods of [`Graph`](crate::Graph), one family per file.
//!
//! What each op means is fixed by `metrale-reference` and listed in `plugin-api/docs/op-set.md`.

mod attention;
mod elementwise;
mod indexer;
mod io;
mod linear;
mod moe;
mod norm;
mod positions;
mod recurrent;
mod shape;
mod vision;

pub use attention::{Attention, KvSpec, Mask};
pub use indexer::{Indexer, MeanKey, Pool, Selection};
pub use moe::{ExpertActivation, Experts, Moe, Router};
pub use positions::RotaryStyle;
pub use recurrent::{Activation, NgramHash};
