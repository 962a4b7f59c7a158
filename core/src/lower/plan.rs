//! The launch plan: what a device executes for one entry point, in order.
//!
//! Steps name *registers* (activations), weights, vectors, rotary tables and states by number. The memory plan gives every
//! register a buffer; registers that are never alive together share one.

use metrale_graph::Source;
use metrale_graph::resolve::ResolvedWeight;

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

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `x · sigmoid(x)`
    Silu,
    /// `1 / (1 + e⁻ˣ)`
    Sigmoid,
    /// `max(x, 0)`
    Relu,
    /// tanh
    Tanh,
    /// eˣ
    Exp,
    /// `ln(1 + eˣ)`
    Softplus,
    /// GELU, exact
    Gelu,
    /// GELU, tanh approximation
    GeluTanh,
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// `a + b`
    Add,
    /// `a · b`
    Mul,
    /// `a / b`
    Div,
}

/// The second operand of an elementwise step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// An activation of the same shape.
    Reg(Reg),
    /// An activation with one number for each row of `a`'s last axis.
    PerRow(Reg),
    /// A vector as long as `a`'s last axis.
    Vector(VectorId),
}

/// What happens to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// Stored.
    Store,
    /// Added to this activation.
    Residual(Reg),
    /// `silu(product) · (x · upᵀ)`.
    SiluGate {
        /// The second matrix.
        up: MatrixId,
        /// Its bias.
        up_bias: Option<VectorId>,
    },
}

/// One product of a [`Step::Linear`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Projection {
    /// `[N, K]`
    pub matrix: MatrixId,
    /// `[N]`
    pub bias: Option<VectorId>,
    /// What happens to it.
    pub epilogue: Epilogue,
    /// `[T, N]`
    pub out: Reg,
}

/// Columns `start .. start + count` of rows of `width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Width of a row.
    pub width: usize,
    /// First column.
    pub start: usize,
    /// Number of columns.
    pub count: usize,
}

/// How rows attend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// Query heads.
    pub heads: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Rows see themselves and what came before; otherwise all of the state.
    pub causal: bool,
    /// Sliding window.
    pub window: Option<usize>,
    /// Soft cap of the scores.
    pub softcap: Option<f32>,
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Rows of a table by token id.
    Embed {
        /// The table.
        matrix: MatrixId,
        /// `[T, width]`
        out: Reg,
    },
    /// Products that share their input.
    Linear {
        /// `[T, K]`
        x: Reg,
        /// The products.
        projections: Vec<Projection>,
    },
    /// Root-mean-square norm of rows of `width`.
    RmsNorm {
        /// Input.
        x: Reg,
        /// Weight.
        weight: Option<VectorId>,
        /// Weights are stored as w − 1.
        zero_centered: bool,
        /// Added to the mean of squares.
        eps: f32,
        /// Length of what is normalised.
        width: usize,
        /// Output.
        out: Reg,
    },
    /// Rotates heads.
    Rope {
        /// Input `[T, heads, dim]`.
        x: Reg,
        /// Heads.
        heads: usize,
        /// Width of a head.
        dim: usize,
        /// Angles.
        table: TableId,
        /// Consecutive pairs.
        interleaved: bool,
        /// Output.
        out: Reg,
    },
    /// Appends keys and values.
    KvWrite {
        /// The cache.
        state: StateId,
        /// `[T, kv_heads, k_dim]`
        k: Reg,
        /// `[T, kv_heads, v_dim]`
        v: Reg,
    },
    /// Attention over a cache.
    Attention {
        /// The cache.
        state: StateId,
        /// `[T, heads, k_dim]`
        q: Reg,
        /// How.
        how: Attend,
        /// `[T, heads, v_dim]`
        out: Reg,
    },
    /// A function of each element.
    Unary {
        /// Which.
        f: Function,
        /// Input.
        x: Reg,
        /// Output.
        out: Reg,
    },
    /// A function of two elements.
    Binary {
        /// Which.
        f: Combine,
        /// First operand.
        a: Reg,
        /// Second operand.
        b: Operand,
        /// Width of `a`'s last axis.
        width: usize,
        /// Output.
        out: Reg,
    },
    /// `factor · x + shift`.
    Affine {
        /// Input.
        x: Reg,
        /// Multiplier.
        factor: f32,
        /// Summand.
        shift: f32,
        /// Output.
        out: Reg,
    },
    /// Cuts columns out of rows.
    Slice {
        /// Input.
        x: Reg,
        /// Which.
        columns: Columns,
        /// Output.
        out: Reg,
    },
    /// Puts columns side by side.
    Concat {
        /// Inputs with the width of their rows.
        parts: Vec<(Reg, usize)>,
        /// Output.
        out: Reg,
    },
}

impl Step {
    /// Registers that it reads.
    #[must_use]
    pub fn reads(&self) -> Vec<Reg> {
        match self {
            Self::Embed { .. } => vec![],
            Self::Linear { x, projections } => {
                let residuals = projections.iter().filter_map(|p| match p.epilogue {
                    Epilogue::Residual(r) => Some(r),
                    _ => None,
                });
                std::iter::once(*x).chain(residuals).collect()
            }
            Self::RmsNorm { x, .. }
            | Self::Rope { x, .. }
            | Self::Unary { x, .. }
            | Self::Affine { x, .. }
            | Self::Slice { x, .. } => vec![*x],
            Self::KvWrite { k, v, .. } => vec![*k, *v],
            Self::Attention { q, .. } => vec![*q],
            Self::Binary { a, b, .. } => match b {
                Operand::Reg(b) | Operand::PerRow(b) => vec![*a, *b],
                Operand::Vector(_) => vec![*a],
            },
            Self::Concat { parts, .. } => parts.iter().map(|p| p.0).collect(),
        }
    }

    /// Registers that it writes.
    #[must_use]
    pub fn writes(&self) -> Vec<Reg> {
        match self {
            Self::Linear { projections, .. } => projections.iter().map(|p| p.out).collect(),
            Self::KvWrite { .. } => vec![],
            Self::Embed { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::Rope { out, .. }
            | Self::Attention { out, .. }
            | Self::Unary { out, .. }
            | Self::Binary { out, .. }
            | Self::Affine { out, .. }
            | Self::Slice { out, .. }
            | Self::Concat { out, .. } => vec![*out],
        }
    }

    /// The register that the output may overwrite, if that register is not read again.
    #[must_use]
    pub fn in_place(&self) -> Option<(Reg, Reg)> {
        match self {
            Self::RmsNorm { x, out, .. }
            | Self::Rope { x, out, .. }
            | Self::Unary { x, out, .. }
            | Self::Affine { x, out, .. } => Some((*x, *out)),
            Self::Binary { a, b, out, .. } if !matches!(b, Operand::Reg(b) | Operand::PerRow(b) if b == a) => {
                Some((*a, *out))
            }
            Self::Linear { x, projections } => match projections.as_slice() {
                [Projection { epilogue: Epilogue::Residual(r), out, .. }] if r != x => Some((*r, *out)),
                _ => None,
            },
            _ => None,
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
}

/// What a device executes for one entry point.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Launches in order.
    pub steps: Vec<Planned>,
    /// Width of every register.
    pub widths: Vec<usize>,
    /// Buffer of every register; filled by the memory plan.
    pub buffers: Vec<usize>,
    /// Width of every buffer.
    pub buffer_widths: Vec<usize>,
    /// Matrices.
    pub matrices: Vec<ResolvedWeight>,
    /// Vectors.
    pub vectors: Vec<Vector>,
    /// Rotary tables.
    pub tables: Vec<RotaryTable>,
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

    /// f32 activations per row that the buffers take.
    #[must_use]
    pub fn floats_per_row(&self) -> usize {
        self.buffer_widths.iter().sum()
    }
}
