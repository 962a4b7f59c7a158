//! What the launches of a plan are told besides registers: functions, widths, heads, experts.

use super::{MatrixId, Reg, StateId, TableId, VectorId};

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

/// One product of a [`Step::Linear`](super::Step::Linear).
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

/// Heads and widths of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    /// Key and value heads.
    pub count: usize,
    /// Width of a key head.
    pub k_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
}

/// Head counts and widths of a gated delta rule. Value head h uses key head h / (`value_heads` / `key_heads`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaRule {
    /// Key and query heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
}

/// How a router scores experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// Limits the choice to the best groups of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups of equal size.
    pub count: usize,
    /// Groups that stay.
    pub top: usize,
}

/// Weights of all experts and what happens between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts, E.
    pub count: usize,
    /// `[E · I, H]`
    pub gate: MatrixId,
    /// `[E · I, H]`; experts of two matrices have none.
    pub up: Option<MatrixId>,
    /// `[E · H, I]`
    pub down: MatrixId,
    /// Applied to the gate, before it is multiplied with up.
    pub activation: Function,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moe {
    /// `[T, H]`
    pub x: Reg,
    /// `[T, E]`
    pub logits: Reg,
    /// How logits become scores.
    pub scoring: Scoring,
    /// `[E]`, added to the scores for the choice only.
    pub bias: Option<VectorId>,
    /// Group limit.
    pub groups: Option<Groups>,
    /// Experts per row.
    pub top_k: usize,
    /// The weights of a row add up to 1 before `scale`.
    pub renormalize: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// The experts.
    pub experts: Experts,
    /// Scratch `[T, top_k · I]`: between the matrices.
    pub inner: Reg,
    /// Scratch `[T, top_k · H]`: what each chosen expert computes.
    pub chosen: Reg,
    /// `[T, H]`
    pub out: Reg,
}

/// Root-mean-square norm of every head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// Weight.
    pub weight: VectorId,
    /// Weights are stored as w − 1.
    pub zero_centered: bool,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// What lies between merged projections of queries, keys and values, and attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkvWrite {
    /// `[T, (heads + kv_heads) · k_dim + kv_heads · v_dim]`
    pub x: Reg,
    /// Query heads.
    pub heads: usize,
    /// Of queries.
    pub q_norm: Option<HeadNorm>,
    /// Of keys.
    pub k_norm: Option<HeadNorm>,
    /// Angles for queries and keys, and whether pairs are consecutive.
    pub rope: Option<(TableId, bool)>,
    /// The cache.
    pub state: StateId,
    /// Queries, `[T, heads, k_dim]`.
    pub q: Reg,
}
