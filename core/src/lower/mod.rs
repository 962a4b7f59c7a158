//! Graph to launch plan.
//!
//! [`build`] turns each op into a step, the rewrites of [`fuse`] merge steps, [`memory`] gives registers their buffers.
//! The plan is the same for every number of rows.

mod build;
mod fuse;
mod memory;
pub mod plan;

use metrale_graph::resolve::Resolution;
use metrale_graph::{Graph, Source, StateDecl};

pub use plan::Plan;

/// An op that a device cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error[P0502]: the {device} device cannot run {op}{detail}\n  --> {place}")]
pub struct LowerError {
    /// Which device.
    pub device: &'static str,
    /// Which op.
    pub op: String,
    /// What about it; starts with a colon, or is empty.
    pub detail: String,
    /// The author's source line.
    pub place: String,
}

impl LowerError {
    fn new(op: &str, detail: &str, source: &Source) -> Self {
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        Self { device: "cpu", op: op.to_owned(), detail, place: source.to_string() }
    }
}

/// What becomes of `tap/1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Taps {
    /// They cost nothing and cannot be read.
    #[default]
    Drop,
    /// They become outputs `name.index`, for comparing a device with the reference.
    Keep,
}

/// Lowers one entry point. `states` is the model's list of states, by which the plan numbers them.
///
/// # Errors
/// An op, or a use of one, that the device has no kernel for.
pub fn lower(
    graph: &Graph,
    resolution: &Resolution,
    states: &[StateDecl],
    taps: Taps,
) -> Result<Plan, LowerError> {
    let mut plan = build::build(graph, resolution, states, taps)?;
    fuse::shared_input::fuse(&mut plan);
    fuse::silu_gate::fuse(&mut plan);
    fuse::residual::fuse(&mut plan);
    memory::assign(&mut plan);
    Ok(plan)
}
