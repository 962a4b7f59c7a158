//! The meaning of the op set: an f32 interpreter of traced graphs, on the CPU, one op after another.
//!
//! Slow and plain on purpose. [`run`] evaluates one step of any [`metrale_graph::Graph`]; [`Model`] opens a plugin and a
//! checkpoint and runs whole models. Kernels and lowerings are right when they agree with what this crate computes.
//! Every op of the schema is implemented in `ops/`, one family per file.

#![forbid(unsafe_code)]

mod batch;
mod checkpoint;
mod error;
mod interpret;
mod model;
mod ops;
mod state;
mod tensor;
mod vision;
mod weights;

pub use batch::Batch;
pub use checkpoint::Checkpoint;
pub use error::{Fault, ModelError, RunError};
pub use interpret::{Keep, Outputs, run};
pub use model::{Chunk, Entry, Forward, Model};
pub use state::{KvRows, Sequence, StateData};
pub use tensor::{Ints, Tensor, Value};
pub use vision::ImageRows;
pub use weights::Weights;
