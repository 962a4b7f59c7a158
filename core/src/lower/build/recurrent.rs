//! Ops that carry state from token to token.

use metrale_graph::Node;

use super::{Builder, Reader, Result, Step};
use crate::lower::plan::{DeltaRule, Function};

impl Builder<'_> {
    pub(super) fn causal_conv1d(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let x = self.reg(reader, 0)?;
        let kernel = self.graph.value(reader.input(1)).width().unwrap_or(0);
        let weight = self.vector(reader, reader.input(1))?;
        let (state, _) = self.state(reader, reader.input(2))?;
        let activation = reader.choice("activation", &[("none", None), ("silu", Some(Function::Silu))])?;
        reader.only_size("dilation", 1)?;
        Ok(Step::Conv { state, x, weight, kernel, activation, out: self.new_reg(node.outputs[0]) })
    }

    pub(super) fn gated_delta_rule(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let (q, k, v) = (self.reg(reader, 0)?, self.reg(reader, 1)?, self.reg(reader, 2)?);
        let (g, beta) = (self.reg(reader, 3)?, self.reg(reader, 4)?);
        let (state, _) = self.state(reader, reader.input(5))?;
        let [key_heads, key_dim] = self.row(reader, reader.input(0))?;
        let [value_heads, value_dim] = self.row(reader, reader.input(2))?;
        let heads = DeltaRule { key_heads, value_heads, key_dim, value_dim };
        Ok(Step::DeltaRule { state, heads, q, k, v, g, beta, out: self.new_reg(node.outputs[0]) })
    }
}
