//! The launch plan: what a device executes for one entry point, in order.
//!
//! Steps name *registers* (activations), weights, vectors, rotary tables and states by number. The memory plan gives every
//! register a buffer; registers that are never alive together share one.

mod dataflow;
mod params;
mod step;

use metrale_graph::Source;
use metrale_graph::resolve::ResolvedWeight;

pub use params::{
    Attend, Columns, Combine, DeltaRule, Epilogue, ExpertActivation, Experts, Function, Groups, HeadNorm, Ids,
    Index, KvHeads, Moe, Operand, Pool, Projection, QkvWrite, Scoring, Sections, Select, Streams,
};
pub use step::Step;

/// An activation, `[T, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub usize);

/// Number of a matrix in [`Plan::matrices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixId(pub usize);

/// Number of a vector in [`Plan::vectors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorId(pub usize);

/// Number of a rotary table in [`Plan::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableId(pub usize);

/// Number of a state in the model's list of states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateId(pub usize);

/// Element type of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// Brain floats.
    BF16,
}

impl ElementType {
    /// Bytes of an element.
    #[must_use]
    pub fn num_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::BF16 => 2,
        }
    }
}

/// A step and where it comes from.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The launch.
    pub step: Step,
    /// The author's source line of the op that it computes (the last one, if it computes several).
    pub source: Source,
    /// Decoder layer.
    pub layer: Option<usize>,
}

/// A vector of the plan: a weight, or numbers that follow from constants and weights.
#[derive(Clone, Debug)]
pub enum Vector {
    /// A weight.
    Weight(ResolvedWeight),
    /// Constants.
    Constant(Vec<f32>),
    /// `a` combined with `b`, elementwise, at load.
    Combined(Combine, Box<Vector>, Box<Vector>),
}

/// Angles of one rotary embedding, filled once per step.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    /// Inverse frequencies `[R/2]`.
    pub inv_freq: VectorId,
    /// Multiplies sine and cosine.
    pub attention_factor: f32,
    /// Which position each pair follows.
    pub streams: Streams,
}

/// What a device executes for one entry point.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Launches in order.
    pub steps: Vec<Planned>,
    /// Width of every register.
    pub widths: Vec<usize>,
    /// Rows of the step that make one row of a register: 1, but for what a vision tower computes of blocks of patches.
    pub divisors: Vec<usize>,
    /// Element type of every register.
    pub types: Vec<ElementType>,
    /// Buffer of every register; filled by the memory plan.
    pub buffers: Vec<usize>,
    /// Bytes of a row in every buffer.
    pub buffer_row_bytes: Vec<usize>,
    /// Matrices.
    pub matrices: Vec<ResolvedWeight>,
    /// Vectors.
    pub vectors: Vec<Vector>,
    /// Rotary tables.
    pub tables: Vec<RotaryTable>,
    /// Rows of the square table of positions that `position_taps` refer to.
    pub position_table: Option<usize>,
    /// Float inputs by name.
    pub inputs: Vec<(String, Reg)>,
    /// Outputs by name.
    pub outputs: Vec<(String, Reg)>,
}

impl Plan {
    /// An output by name.
    #[must_use]
    pub fn output(&self, name: &str) -> Option<Reg> {
        self.outputs.iter().find(|(n, _)| n == name).map(|(_, r)| *r)
    }

    /// An input by name.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<Reg> {
        self.inputs.iter().find(|(n, _)| n == name).map(|(_, r)| *r)
    }

    /// Bytes of a register per row of the step, rounded up to whole elements.
    #[must_use]
    pub fn row_bytes(&self, reg: Reg) -> usize {
        self.widths[reg.0].div_ceil(self.divisors[reg.0]) * self.types[reg.0].num_bytes()
    }

    /// Bytes per row that the buffers take.
    #[must_use]
    pub fn bytes_per_row(&self) -> usize {
        self.buffer_row_bytes.iter().sum()
    }
}
