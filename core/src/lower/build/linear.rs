//! Products with matrices, and table lookup.

use metrale_graph::Node;

use super::io::Fed;
use super::{Builder, Reader, Result, Step};
use crate::lower::plan::{Epilogue, Ids, Projection};

impl Builder<'_> {
    pub(super) fn embedding(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let id = reader.input(0);
        let ids = if self.source_of(id) == "position_taps" {
            Ids::PositionTaps
        } else {
            self.expect_fed(reader, id, Fed::Ids)?;
            Ids::Rows
        };
        let matrix = self.matrix(reader, reader.input(1))?;
        let out = self.new_reg(node.outputs[0]);
        Ok(Step::Embed { ids, matrix, out })
    }

    pub(super) fn linear(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let x = self.reg(reader, 0)?;
        let [_] = self.row(reader, reader.input(0))?;
        let matrix = self.matrix(reader, reader.input(1))?;
        let bias = self.optional_vector(reader, 2)?;
        let out = self.new_reg(node.outputs[0]);
        let projection = Projection { matrix, bias, epilogue: Epilogue::Store, out };
        Ok(Step::Linear { x, projections: vec![projection] })
    }

    pub(super) fn head_linear(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let x = self.reg(reader, 0)?;
        let [heads, _] = self.row(reader, reader.input(0))?;
        let matrix = self.matrix(reader, reader.input(1))?;
        Ok(Step::HeadLinear { x, heads, matrix, out: self.new_reg(node.outputs[0]) })
    }
}
