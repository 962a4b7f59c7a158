//! The launches of a plan.

use super::{
    Attend, Columns, Combine, DeltaRule, Function, Ids, Index, KvHeads, MatrixId, Moe, Operand, Projection,
    QkvWrite, Reg, Select, StateId, TableId, VectorId,
};

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Rows of a table.
    Embed {
        /// By what.
        ids: Ids,
        /// The table.
        matrix: MatrixId,
        /// `[T, width]`, or `[T, n, width]` for n ids per row.
        out: Reg,
    },
    /// Replaces rows of text by rows of images, in place.
    MergeImages {
        /// Input.
        x: Reg,
        /// Output.
        out: Reg,
    },
    /// Products that share their input.
    Linear {
        /// `[T, K]`
        x: Reg,
        /// The products.
        projections: Vec<Projection>,
    },
    /// Every head's product with a matrix of its own.
    HeadLinear {
        /// `[T, heads, K]`
        x: Reg,
        /// Heads.
        heads: usize,
        /// `[heads · N, K]`
        matrix: MatrixId,
        /// `[T, heads, N]`
        out: Reg,
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
    /// `(x − mean) / √(var + eps) · weight + bias` of rows of `width`.
    LayerNorm {
        /// Input.
        x: Reg,
        /// Weight.
        weight: Option<VectorId>,
        /// Bias.
        bias: Option<VectorId>,
        /// Added to the variance.
        eps: f32,
        /// Length of what is normalised.
        width: usize,
        /// Output.
        out: Reg,
    },
    /// `x / √(Σ x² + eps)` of rows of `width`.
    L2Norm {
        /// Input.
        x: Reg,
        /// Added to the sum of squares.
        eps: f32,
        /// Length of what is normalised.
        width: usize,
        /// Output.
        out: Reg,
    },
    /// Position vectors `[sines | cosines]`.
    Sinusoid {
        /// Width of a vector.
        width: usize,
        /// Added to every position.
        offset: usize,
        /// `[T, width]`
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
    /// Norms and rotates heads of merged queries, keys and values, and appends keys and values.
    QkvWrite(Box<QkvWrite>),
    /// `f(first half) · second half` of each row.
    GatedHalves {
        /// Which function.
        f: Function,
        /// `[T, 2 · width]`
        x: Reg,
        /// `[T, width]`
        out: Reg,
    },
    /// Appends keys and values.
    KvWrite {
        /// The cache.
        state: StateId,
        /// `[T, kv_heads, k_dim]`
        k: Reg,
        /// `[T, kv_heads, v_dim]`; left out where values are the first dimensions of the keys.
        v: Option<Reg>,
    },
    /// Chooses the positions that a sparse attention reads.
    Index(Box<Index>),
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
    /// Attention over chosen positions of a cache.
    SparseAttention {
        /// The cache.
        state: StateId,
        /// `[T, heads, k_dim]`
        q: Reg,
        /// The positions.
        select: Select,
        /// How.
        how: Attend,
        /// `[T, heads, v_dim]`
        out: Reg,
    },
    /// Attention of the rows of each sequence among themselves.
    LocalAttention {
        /// `[T, heads, k_dim]`
        q: Reg,
        /// `[T, kv_heads, k_dim]`
        k: Reg,
        /// `[T, kv_heads, v_dim]`
        v: Reg,
        /// Heads and widths of keys and values.
        shape: KvHeads,
        /// How.
        how: Attend,
        /// `[T, heads, v_dim]`
        out: Reg,
    },
    /// Causal convolution of each channel, then an activation.
    Conv {
        /// The most recent inputs.
        state: StateId,
        /// `[T, channels]`
        x: Reg,
        /// `[channels, kernel]`
        weight: VectorId,
        /// Taps.
        kernel: usize,
        /// Applied to the result.
        activation: Option<Function>,
        /// `[T, channels]`
        out: Reg,
    },
    /// Gated delta rule.
    DeltaRule {
        /// `[value_heads, key_dim, value_dim]` per sequence.
        state: StateId,
        /// Heads.
        heads: DeltaRule,
        /// `[T, key_heads, key_dim]`
        q: Reg,
        /// `[T, key_heads, key_dim]`
        k: Reg,
        /// `[T, value_heads, value_dim]`
        v: Reg,
        /// Log decay, `[T, value_heads]` or `[T, value_heads, key_dim]`.
        g: Reg,
        /// `[T, value_heads]`
        beta: Reg,
        /// `[T, value_heads, value_dim]`
        out: Reg,
    },
    /// Mixture of experts.
    Moe(Box<Moe>),
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
    /// Sums of `count` neighbouring runs of `inner` floats, times `factor`.
    Reduce {
        /// Input.
        x: Reg,
        /// Runs that are added up.
        count: usize,
        /// Floats per run.
        inner: usize,
        /// Multiplies the sums.
        factor: f32,
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
    /// `min(max(x, low), high)`.
    Clamp {
        /// Input.
        x: Reg,
        /// Lower bound; −∞ does not bind.
        low: f32,
        /// Upper bound; ∞ does not bind.
        high: f32,
        /// Output.
        out: Reg,
    },
    /// The same numbers as elements of the output's type.
    Convert {
        /// Input.
        x: Reg,
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
