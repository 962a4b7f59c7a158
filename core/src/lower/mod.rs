//! Graph to launch plan.
//!
//! [`build`] turns each op into a step, the rewrites of [`fuse`] merge steps, [`types`] and [`memory`] give registers
//! their element types and buffers. The plan is the same for every number of rows.

mod build;
mod fuse;
mod memory;
pub mod plan;
mod support;
mod types;

use metrale_graph::resolve::Resolution;
use metrale_graph::{Graph, Source, StateDecl};

use plan::ElementType;
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
        Self { device: "", op: op.to_owned(), detail, place: source.to_string() }
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

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The device that executes it.
    pub device: DeviceKind,
    /// Element type of activations.
    pub activations: ElementType,
    /// What becomes of `tap/1`.
    pub taps: Taps,
    /// Images can be among the text. Otherwise placeholders stay what they are, and there is one stream of positions.
    pub images: bool,
}

/// The kinds of devices, which differ in what their kernels do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl DeviceKind {
    /// As in `--device`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// Lowers one entry point. `states` is the model's list of states, by which the plan numbers them.
///
/// # Errors
/// An op, or a use of one, that the device has no kernel for.
pub fn lower(
    graph: &Graph,
    resolution: &Resolution,
    states: &[StateDecl],
    target: Target,
) -> Result<Plan, LowerError> {
    let mut plan = build::build(graph, resolution, states, target)
        .map_err(|error| LowerError { device: target.device.name(), ..error })?;
    support::check(&plan, target.device)?;
    fuse::shared_input::fuse(&mut plan);
    match target.device {
        DeviceKind::Cpu => fuse::silu_gate::fuse(&mut plan),
        DeviceKind::Cuda => {
            fuse::merged_gate::fuse(&mut plan);
            fuse::merged_qkv::fuse(&mut plan);
        }
    }
    fuse::residual::fuse(&mut plan);
    types::assign(&mut plan, target.activations);
    memory::assign(&mut plan);
    Ok(plan)
}
