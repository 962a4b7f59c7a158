//! Normalisations over the last axis.

use metrale_graph::Node;

use super::{Builder, Reader, Result, Step};

impl Builder<'_> {
    fn last_axis(&self, reader: &Reader<'_>) -> usize {
        self.graph.value(reader.input(0)).width().unwrap_or(0)
    }

    pub(super) fn rms_norm(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let (x, width) = (self.reg(reader, 0)?, self.last_axis(reader));
        let weight = self.optional_vector(reader, 1)?;
        let (eps, zero_centered) = (reader.float("eps")?, reader.flag("zero_centered")?);
        if zero_centered && weight.is_none() {
            return Err(reader.unsupported("`zero_centered` needs a weight"));
        }
        Ok(Step::RmsNorm { x, weight, zero_centered, eps, width, out: self.new_reg(node.outputs[0]) })
    }

    pub(super) fn layer_norm(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let (x, width) = (self.reg(reader, 0)?, self.last_axis(reader));
        let (weight, bias) = (self.optional_vector(reader, 1)?, self.optional_vector(reader, 2)?);
        let eps = reader.float("eps")?;
        Ok(Step::LayerNorm { x, weight, bias, eps, width, out: self.new_reg(node.outputs[0]) })
    }

    pub(super) fn l2_norm(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let (x, width) = (self.reg(reader, 0)?, self.last_axis(reader));
        let eps = reader.float("eps")?;
        Ok(Step::L2Norm { x, eps, width, out: self.new_reg(node.outputs[0]) })
    }
}
