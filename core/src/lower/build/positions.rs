//! Rotary and sinusoidal positions.

use metrale_graph::Node;

use super::io::Fed;
use super::{Builder, Reader, Result, Step};
use crate::lower::plan::{RotaryTable, Sections, Streams, TableId, VectorId};

impl Builder<'_> {
    pub(super) fn rope(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let x = self.reg(reader, 0)?;
        let streams = self.streams(reader)?;
        let attention_factor = reader.float("attention_factor")?;
        let inv_freq = self.vector(reader, reader.input(2))?;
        let table = self.rotary_table(RotaryTable { inv_freq, attention_factor, streams });
        let [heads, dim] = self.row(reader, reader.input(0))?;
        let interleaved = reader.choice("style", &[("half", false), ("interleaved", true)])?;
        Ok(Step::Rope { x, heads, dim, table, interleaved, out: self.new_reg(node.outputs[0]) })
    }

    /// Layers that rotate alike share a table.
    fn rotary_table(&mut self, table: RotaryTable) -> TableId {
        let text = |v: VectorId| format!("{:?}", self.plan.vectors[v.0]);
        let same = |t: &RotaryTable| {
            t.attention_factor == table.attention_factor
                && t.streams == table.streams
                && text(t.inv_freq) == text(table.inv_freq)
        };
        if let Some(known) = self.plan.tables.iter().position(same) {
            TableId(known)
        } else {
            self.plan.tables.push(table);
            TableId(self.plan.tables.len() - 1)
        }
    }

    /// What the pairs of a head follow: the rows' positions, or three streams that sections deal out.
    fn streams(&self, reader: &Reader<'_>) -> Result<Streams> {
        let positions = reader.input(1);
        let blocked = reader.choice("section_layout", &[("interleaved", false), ("blocked", true)])?;
        let sections = || -> Result<Sections> {
            let sizes = <[usize; 3]>::try_from(reader.sizes("sections")?)
                .map_err(|found| reader.unsupported(&format!("the sections {found:?} have no kernel")))?;
            Ok(Sections { sizes, blocked })
        };
        match (self.graph.entry.as_str(), self.source_of(positions)) {
            ("text" | "mtp", "mrope_positions") => {
                let sections = sections()?;
                Ok(if self.target.images { Streams::Text(sections) } else { Streams::One })
            }
            ("vision", "patch_positions") => Ok(Streams::Patches(sections()?)),
            _ => {
                self.expect_fed(reader, positions, Fed::Positions)?;
                // With one stream there is nothing to deal out.
                reader.without_effect("sections");
                Ok(Streams::One)
            }
        }
    }

    pub(super) fn sinusoid(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        self.expect_fed(reader, reader.input(0), Fed::Positions)?;
        let (width, offset) = (reader.size("width")?, reader.size("offset")?);
        Ok(Step::Sinusoid { width, offset, out: self.new_reg(node.outputs[0]) })
    }
}
