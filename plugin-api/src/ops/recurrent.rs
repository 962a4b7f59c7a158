//! Ops that carry state from token to token.

use crate::attr::Attrs;
use crate::error::Result;
use crate::graph::{Graph, Operand, State, Value, Weight};

/// What a convolution applies to its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None,
    /// `x · sigmoid(x)`.
    Silu,
}

impl Graph {
    /// State of a recurrence, f32, zero at the start of a sequence.
    #[track_caller]
    pub fn recurrent_state(&self, name: &str, shape: &[usize]) -> Result<State> {
        let attrs = Attrs::new().with("name", name).with("kind", "recurrent").with("shape", shape);
        self.op1("state/1", &[], &attrs).map(|v| State(v.0))
    }

    /// The last `width − 1` inputs of a convolution over `channels`, zero at the start of a sequence. For a dilated
    /// convolution `width` is `(kernel width − 1) · dilation + 1`.
    #[track_caller]
    pub fn conv_state(&self, name: &str, channels: usize, width: usize) -> Result<State> {
        let attrs = Attrs::new()
            .with("name", name)
            .with("kind", "conv")
            .with("shape", &[channels, width.saturating_sub(1)][..]);
        self.op1("state/1", &[], &attrs).map(|v| State(v.0))
    }

    /// Causal depthwise convolution of `x: [T, channels]` with `weight: [channels, width]`, most recent input last.
    #[track_caller]
    pub fn causal_conv1d(
        &self,
        x: Value,
        weight: Weight,
        state: State,
        activation: Activation,
    ) -> Result<Value> {
        self.dilated_conv1d(x, weight, state, activation, 1)
    }

    /// [`Graph::causal_conv1d`] over every `dilation`-th input.
    #[track_caller]
    pub fn dilated_conv1d(
        &self,
        x: Value,
        weight: Weight,
        state: State,
        activation: Activation,
        dilation: usize,
    ) -> Result<Value> {
        let activation = match activation {
            Activation::None => "none",
            Activation::Silu => "silu",
        };
        self.op1(
            "causal_conv1d/1",
            &[x.0, weight.id(), state.0],
            &Attrs::new().with("activation", activation).with("dilation", dilation),
        )
    }

    /// The gated delta rule (Yang et al., 2024, "Gated Delta Networks"), per value head with state `S: [dk, dv]`:
    /// `S ← eᵍ S;  S ← S + k ⊗ β(v − Sᵀk);  o = Sᵀq`.
    ///
    /// `q`, `k`: `[T, Hk, dk]`; `v`: `[T, Hv, dv]`, value head `h` uses key head `h / (Hv / Hk)`;
    /// `g` (≤ 0): `[T, Hv]` or per channel `[T, Hv, dk]`; `beta`: `[T, Hv]`; state `[Hv, dk, dv]`. Gives `[T, Hv, dv]`.
    #[track_caller]
    pub fn gated_delta_rule(
        &self,
        [q, k, v]: [Value; 3],
        g: Value,
        beta: Value,
        state: State,
    ) -> Result<Value> {
        self.op1("gated_delta_rule/1", &[q.0, k.0, v.0, g.0, beta.0, state.0], &Attrs::new())
    }

    /// The most recent `count` token ids of the sequence.
    #[track_caller]
    pub fn token_state(&self, name: &str, count: usize) -> Result<State> {
        let attrs = Attrs::new().with("name", name).with("kind", "tokens").with("shape", &[count][..]);
        self.op1("state/1", &[], &attrs).map(|v| State(v.0))
    }

    /// Table rows for the n-grams that end at each of `ids: [T]`: `[T, heads]`, ready for [`Graph::embedding`]. `history`
    /// keeps one token less than the longest n-gram.
    #[track_caller]
    pub fn ngram_hash(&self, ids: Value, history: State, hash: &NgramHash) -> Result<Value> {
        let attrs = Attrs::new()
            .with("orders", &hash.orders[..])
            .with("multipliers", hash.multipliers.clone())
            .with("moduli", &hash.moduli[..])
            .with("offsets", &hash.offsets[..])
            .with("reset", hash.reset);
        self.op1("ngram_hash/1", &[ids.0, history.0], &attrs)
    }
}

/// How n-grams become table rows: `(⊕ᵢ token[t − i] · multipliers[i]) mod modulus + offset`.
#[derive(Clone, Debug)]
pub struct NgramHash {
    /// Length of each head's n-gram.
    pub orders: Vec<usize>,
    /// One per token of the longest n-gram, the newest first.
    pub multipliers: Vec<i64>,
    /// Table rows of each head.
    pub moduli: Vec<usize>,
    /// First table row of each head.
    pub offsets: Vec<usize>,
    /// Token that ends a context.
    pub reset: i64,
}
