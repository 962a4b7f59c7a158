//! KV caches and attention over them.

use crate::abi::ValueId;
use crate::attr::Attrs;
use crate::error::Result;
use crate::graph::{Graph, Operand, State, Value, Weight, optional};
use crate::ops::Selection;

/// What one KV cache holds per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// KV heads.
    pub num_heads: usize,
    /// Width of a key head.
    pub k_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
    /// Only this many most recent tokens are ever read (the query's own token included); lets the core free the rest.
    pub window: Option<usize>,
    /// Values are the first `v_dim` dimensions of the keys and are not stored again (absorbed MLA).
    pub v_is_k_prefix: bool,
}

impl KvSpec {
    /// Keys and values of the same width, unlimited context.
    #[must_use]
    pub fn new(num_heads: usize, head_dim: usize) -> Self {
        Self { num_heads, k_dim: head_dim, v_dim: head_dim, window: None, v_is_k_prefix: false }
    }

    /// Keys alone: of an indexer, or of latent attention with `v_dim` set.
    #[must_use]
    pub fn keys_only(num_heads: usize, k_dim: usize) -> Self {
        Self { v_is_k_prefix: true, ..Self::new(num_heads, k_dim) }
    }

    /// With a sliding window.
    #[must_use]
    pub fn with_window(self, window: Option<usize>) -> Self {
        Self { window, ..self }
    }
}

/// Which tokens a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mask {
    /// Itself and what came before.
    #[default]
    Causal,
    /// All tokens of its own sequence or segment.
    Full,
}

/// How attention is computed: softmax(scale · q·kᵀ, masked) · v, in f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention {
    /// Multiplies the scores.
    pub scale: f64,
    /// Who sees whom.
    pub mask: Mask,
    /// Key `j` is visible to query `i` only if `i − j < window`.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f64>,
    /// One extra logit per head that takes part in the softmax and contributes no value, `[num_heads]`.
    pub sinks: Option<Weight>,
    /// Positions that a row may see, within the mask.
    pub select: Option<Selection>,
}

impl Attention {
    /// Causal attention with a scale.
    #[must_use]
    pub fn causal(scale: f64) -> Self {
        Self { scale, ..Self::default() }
    }

    /// Bidirectional attention with a scale.
    #[must_use]
    pub fn full(scale: f64) -> Self {
        Self { scale, mask: Mask::Full, ..Self::default() }
    }

    /// With a sliding window.
    #[must_use]
    pub fn with_window(self, window: Option<usize>) -> Self {
        Self { window, ..self }
    }

    fn attrs(&self) -> Attrs {
        let mask = match self.mask {
            Mask::Causal => "causal",
            Mask::Full => "full",
        };
        Attrs::new()
            .with("scale", self.scale)
            .with("mask", mask)
            .with_some("window", self.window)
            .with_some("softcap", self.softcap)
            .with_some("select_block", self.select.map(|s| s.block))
    }
}

impl Graph {
    /// A KV cache of the sequence. `name` is stable across entry points and unique per cache: `"layers.3.self"`.
    #[track_caller]
    pub fn kv_cache(&self, name: &str, spec: &KvSpec) -> Result<State> {
        self.kv_state(name, "kv", spec)
    }

    /// A cache that the encoder fills once per request and the decoder reads: `"layers.3.cross"`.
    #[track_caller]
    pub fn cross_cache(&self, name: &str, spec: &KvSpec) -> Result<State> {
        self.kv_state(name, "cross", spec)
    }

    #[track_caller]
    fn kv_state(&self, name: &str, kind: &str, spec: &KvSpec) -> Result<State> {
        let attrs = Attrs::new()
            .with("name", name)
            .with("kind", kind)
            .with("num_heads", spec.num_heads)
            .with("k_dim", spec.k_dim)
            .with("v_dim", spec.v_dim)
            .with("v_is_k_prefix", spec.v_is_k_prefix)
            .with_some("window", spec.window);
        self.op1("state/1", &[], &attrs).map(|v| State(v.0))
    }

    /// Appends the rows' keys `[T, num_heads, k_dim]` and values `[T, num_heads, v_dim]`; what follows reads the result.
    #[track_caller]
    pub fn kv_write(&self, cache: State, k: Value, v: Option<Value>) -> Result<State> {
        self.op1("kv_write/1", &[cache.0, k.0, optional(v)], &Attrs::new()).map(|v| State(v.0))
    }

    /// Attention of `q: [T, heads, k_dim]` over a cache; query head `h` reads KV head `h / (heads / num_heads)`.
    /// Gives `[T, heads, v_dim]`.
    #[track_caller]
    pub fn attention(&self, q: Value, cache: State, how: &Attention) -> Result<Value> {
        self.attend(q, cache.0, (ValueId::NONE, ValueId::NONE), how)
    }

    /// Attention over the rows' own keys and values, within each sequence or segment; keeps no state.
    #[track_caller]
    pub fn attention_local(&self, q: Value, k: Value, v: Value, how: &Attention) -> Result<Value> {
        self.attend(q, ValueId::NONE, (k.0, v.0), how)
    }

    #[track_caller]
    fn attend(&self, q: Value, cache: ValueId, (k, v): (ValueId, ValueId), how: &Attention) -> Result<Value> {
        let inputs = [q.id(), cache, k, v, optional(how.select.map(|s| s.entries)), optional(how.sinks)];
        self.op1("attention/1", &inputs, &how.attrs())
    }
}
