//! Choosing the positions that sparse attention reads.

use metrale_graph::Node;

use super::{Builder, Reader, Result, Step};
use crate::lower::plan::{Index, Pool};

impl Builder<'_> {
    pub(super) fn indexer_topk(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let q = self.reg(reader, 0)?;
        let [heads, _] = self.row(reader, reader.input(0))?;
        let (state, _) = self.state(reader, reader.input(1))?;
        let head_weights = reader.optional_input(2).map(|_| self.reg(reader, 2)).transpose()?;
        // Of mean keys, which have no kernel.
        reader.without_effect("eps");
        reader.without_effect("zero_centered");
        let (block, local_blocks) = (reader.size("block")?, reader.size("local_blocks")?);
        let pools = [("none", Pool::Positions), ("max_scores", Pool::MaxScores { block, local_blocks })];
        Ok(Step::Index(Box::new(Index {
            state,
            q,
            heads,
            head_weights,
            top_k: reader.size("top_k")?,
            scale: reader.float("scale")?,
            relu: reader.choice("activation", &[("relu", true), ("none", false)])?,
            per_head: reader.flag("per_head")?,
            pool: reader.choice("pool", &pools)?,
            out: self.new_reg(node.outputs[0]),
        })))
    }
}
