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

/// Which ids a lookup reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// The rows' own: tokens, the tokens after them, source tokens.
    Rows,
    /// Four entries of a square table of positions for each patch.
    PositionTaps,
}

/// Which position streams a rotary table follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// One position per row.
    One,
    /// Frame, row and column of the rows of a text with images.
    Text(Sections),
    /// Frame, row and column of patches.
    Patches(Sections),
}

/// How pairs are dealt out to three position streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Pairs per stream.
    pub sizes: [usize; 3],
    /// Streams follow one another instead of taking turns.
    pub blocked: bool,
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

/// The positions that rows see, chosen by a [`Step::Index`](super::Step::Index).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select {
    /// `[T, num_entries]`, or `[T, kv_heads, num_entries]`: whole numbers, negative ones stand for nothing.
    pub entries: Reg,
    /// Entries of a row and head.
    pub num_entries: usize,
    /// KV heads see positions of their own.
    pub per_head: bool,
    /// Positions of an entry.
    pub block: usize,
}

/// What competes for being seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Positions, one by one.
    Positions,
    /// Blocks of positions, by their best score.
    MaxScores {
        /// Positions per block.
        block: usize,
        /// Blocks up to the row's own that come first.
        local_blocks: usize,
    },
}

/// Chooses positions: `score(j) = Σₕ wₕ · act(scale · qₕ·kⱼ)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Index {
    /// The keys, of one head.
    pub state: StateId,
    /// `[T, heads, k_dim]`
    pub q: Reg,
    /// Index heads.
    pub heads: usize,
    /// `[T, heads]`; left out, every head weighs 1.
    pub head_weights: Option<Reg>,
    /// Entries to choose.
    pub top_k: usize,
    /// Multiplies the products.
    pub scale: f32,
    /// Negative products count as 0.
    pub relu: bool,
    /// Every head chooses for itself.
    pub per_head: bool,
    /// What competes.
    pub pool: Pool,
    /// `[T, top_k]`, or `[T, heads, top_k]`: whole numbers, best first, −1 for what is left.
    pub out: Reg,
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

/// What an expert computes between its matrices, from `g = gate · x` and `u = up · x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertActivation {
    /// `f(g)`, times `u` where there is an up matrix.
    Function(Function),
    /// `silu(min(g, limit)) · clamp(u, ±limit)`
    ClampedSilu {
        /// Largest gate, largest magnitude of `u`.
        limit: f32,
    },
    /// `g · sigmoid(alpha · g) · (clamp(u, ±limit) + 1)` with `g` at most `limit`.
    SwigluOai {
        /// Largest gate, largest magnitude of `u`.
        limit: f32,
        /// Slope of the sigmoid.
        alpha: f32,
    },
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
    /// `[E, I]`; gated experts have none.
    pub gate_bias: Option<VectorId>,
    /// `[E, H]`
    pub down_bias: Option<VectorId>,
    /// What happens between the matrices.
    pub activation: ExpertActivation,
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
