//! Views, cuts and joins of rows.

use metrale_graph::{Node, ValueId};

use super::{Builder, Reader, Result, Step};
use crate::lower::DeviceKind;
use crate::lower::plan::Columns;

impl Builder<'_> {
    /// Rows keep their elements in order, so the result is where the input is.
    pub(super) fn alias(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Option<Step>> {
        reader.without_effect("dims"); // They are in the shape.
        let reg = self.reg(reader, 0)?;
        self.regs.insert(node.outputs[0], reg);
        Ok(None)
    }

    /// Floats per step of an axis.
    fn inner(&self, id: ValueId, axis: usize) -> usize {
        self.graph.value(id).shape[axis + 1..].iter().filter_map(|d| d.size()).product()
    }

    /// One launch per piece. Axes before the cut one are folded into the rows.
    pub(super) fn split(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Option<Step>> {
        let x = self.reg(reader, 0)?;
        let inner = self.inner(reader.input(0), reader.size("axis")?);
        let sizes = reader.sizes("sizes")?;
        let width = sizes.iter().sum::<usize>() * inner;
        let mut start = 0;
        for (size, output) in sizes.iter().zip(&node.outputs) {
            let count = size * inner;
            let out = self.new_reg(*output);
            self.push(node, Step::Slice { x, columns: Columns { width, start, count }, out });
            start += count;
        }
        Ok(None)
    }

    /// An entry side by side with its copies. Axes before it are folded into the rows.
    pub(super) fn repeat(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let (x, axis, times) = (self.reg(reader, 0)?, reader.size("axis")?, reader.size("times")?);
        let part = (x, self.inner(reader.input(0), axis));
        Ok(Step::Concat { parts: vec![part; times], out: self.new_reg(node.outputs[0]) })
    }

    /// Sums along an axis, times a factor of its length.
    pub(super) fn reduce(
        &mut self,
        node: &Node,
        reader: &Reader<'_>,
        factor: impl Fn(usize) -> f32,
    ) -> Result<Step> {
        if self.target.device == DeviceKind::Cuda {
            return Err(reader.unsupported(""));
        }
        let (x, axis) = (self.reg(reader, 0)?, reader.size("axis")?);
        let count = self.graph.value(reader.input(0)).shape[axis].size().unwrap_or(1);
        let inner = self.inner(reader.input(0), axis);
        let (factor, out) = (factor(count), self.new_reg(node.outputs[0]));
        Ok(Step::Reduce { x, count, inner, factor, out })
    }

    pub(super) fn concat(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let axis = reader.size("axis")?;
        let mut parts = Vec::new();
        for index in 0..node.inputs.len() {
            let id = reader.input(index);
            let size = self.graph.value(id).shape[axis].size().unwrap_or(0);
            parts.push((self.reg(reader, index)?, size * self.inner(id, axis)));
        }
        Ok(Step::Concat { parts, out: self.new_reg(node.outputs[0]) })
    }
}
