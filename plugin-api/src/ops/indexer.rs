//! Choosing the positions that sparse attention reads.

use crate::abi::ValueId;
use crate::attr::Attrs;
use crate::error::Result;
use crate::graph::{Graph, Operand, State, Value, Weight, optional};

/// What an indexer chose for every row. Shared by layers through [`Graph::publish`].
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    /// `[T, n]`, or `[T, heads, n]`; −1 stands for none.
    pub entries: Value,
    /// Positions per entry.
    pub block: usize,
}

/// How positions compete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// One by one.
    Positions,
    /// Blocks that are complete, by the score of their mean key; the incomplete last block is always seen.
    MeanKeys {
        /// Positions per block.
        block: usize,
    },
    /// Blocks, by their best score.
    MaxScores {
        /// Positions per block.
        block: usize,
        /// Blocks up to the row's own that are always chosen.
        local_blocks: usize,
    },
}

/// How an indexer scores and chooses: `score(j) = Σₕ wₕ · act(scale · qₕ·kⱼ)`.
#[derive(Clone, Copy, Debug)]
pub struct Indexer {
    /// Positions or blocks to choose.
    pub top_k: usize,
    /// Multiplies the products.
    pub scale: f64,
    /// Negative products count as 0.
    pub relu: bool,
    /// Every head chooses for itself; else scores are summed over heads.
    pub per_head: bool,
    /// What competes.
    pub pool: Pool,
    /// Weight of each head for each row, `[T, heads]`.
    pub head_weights: Option<Value>,
    /// What happens to mean keys before they are scored.
    pub mean_key: Option<MeanKey>,
}

/// Norm and rotation of the mean key of a block.
#[derive(Clone, Copy, Debug)]
pub struct MeanKey {
    /// RMS norm weight, stored around zero, `[d]`.
    pub norm: Weight,
    /// Of the norm.
    pub eps: f64,
    /// Frequencies for rotating it at the block's first position, `[R/2]`.
    pub inv_freq: Option<Value>,
}

impl Graph {
    /// Chooses, for every row of `q: [T, heads, d]`, among the keys of `keys` (one head of width `d`, this step's written).
    #[track_caller]
    pub fn indexer_topk(&self, q: Value, keys: State, how: &Indexer) -> Result<Selection> {
        let (pool, block, local_blocks) = match how.pool {
            Pool::Positions => ("none", 1, 0),
            Pool::MeanKeys { block } => ("mean_keys", block, 0),
            Pool::MaxScores { block, local_blocks } => ("max_scores", block, local_blocks),
        };
        let attrs = Attrs::new()
            .with("top_k", how.top_k)
            .with("scale", how.scale)
            .with("activation", if how.relu { "relu" } else { "none" })
            .with("per_head", how.per_head)
            .with("pool", pool)
            .with("block", block)
            .with("local_blocks", local_blocks)
            .with("zero_centered", how.mean_key.is_some())
            .with_some("eps", how.mean_key.map(|k| k.eps));
        let norm = how.mean_key.map_or(ValueId::NONE, |k| k.norm.id());
        let inv_freq = optional(how.mean_key.and_then(|k| k.inv_freq));
        let inputs = [q.id(), keys.0, optional(how.head_weights), norm, inv_freq];
        Ok(Selection { entries: self.op1("indexer_topk/1", &inputs, &attrs)?, block })
    }
}
