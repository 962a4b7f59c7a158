//! Rotary and sinusoidal positions.

use metrale_graph::Node;

use super::io::Fed;
use super::{Builder, Reader, Result, Step};
use crate::lower::plan::{RotaryTable, TableId, VectorId};

impl Builder<'_> {
    pub(super) fn rope(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let x = self.reg(reader, 0)?;
        self.expect_fed(reader, reader.input(1), Fed::Positions)?;
        // Sections say which of three position streams a pair follows. There is one.
        reader.without_effect("sections");
        reader.without_effect("section_layout");
        let attention_factor = reader.float("attention_factor")?;
        let inv_freq = self.vector(reader, reader.input(2))?;
        let table = self.rotary_table(inv_freq, attention_factor);
        let [heads, dim] = self.row(reader, reader.input(0))?;
        let interleaved = reader.choice("style", &[("half", false), ("interleaved", true)])?;
        Ok(Step::Rope { x, heads, dim, table, interleaved, out: self.new_reg(node.outputs[0]) })
    }

    /// Layers that rotate alike share a table.
    fn rotary_table(&mut self, inv_freq: VectorId, attention_factor: f32) -> TableId {
        let text = |v: VectorId| format!("{:?}", self.plan.vectors[v.0]);
        let same =
            |t: &RotaryTable| t.attention_factor == attention_factor && text(t.inv_freq) == text(inv_freq);
        if let Some(known) = self.plan.tables.iter().position(same) {
            TableId(known)
        } else {
            self.plan.tables.push(RotaryTable { inv_freq, attention_factor });
            TableId(self.plan.tables.len() - 1)
        }
    }

    pub(super) fn sinusoid(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        self.expect_fed(reader, reader.input(0), Fed::Positions)?;
        let (width, offset) = (reader.size("width")?, reader.size("offset")?);
        Ok(Step::Sinusoid { width, offset, out: self.new_reg(node.outputs[0]) })
    }
}
