//! Between patches of images and rows of text.

use metrale_graph::Node;

use super::{Builder, Reader, Result, Step};

impl Builder<'_> {
    /// Rows lie one after another, so a group of them is a row as it is.
    pub(super) fn group_rows(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Option<Step>> {
        reader.without_effect("count"); // It is in the shape.
        let reg = self.reg(reader, 0)?;
        self.regs.insert(node.outputs[0], reg);
        Ok(None)
    }

    pub(super) fn merge_rows(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Option<Step>> {
        for (index, expected) in [(1, "image_rows"), (2, "image_index")] {
            let found = self.source_of(reader.input(index));
            if found != expected {
                return Err(reader.unsupported(&format!("works on the input `{expected}`, found `{found}`")));
            }
        }
        let x = self.reg(reader, 0)?;
        if !self.target.images {
            self.regs.insert(node.outputs[0], x);
            return Ok(None);
        }
        Ok(Some(Step::MergeImages { x, out: self.new_reg(node.outputs[0]) }))
    }
}
