//! The op set as methods of [`Graph`](crate::Graph), one family per file.
//!
//! What each op means is fixed by `metrale-reference` and listed in `plugin-api/docs/op-set.md`.

mod attention;
mod elementwise;
mod io;
mod linear;
mod norm;
mod positions;
mod shape;

pub use attention::{Attention, KvSpec, Mask};
pub use positions::RotaryStyle;
