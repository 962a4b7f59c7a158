//! Inputs, outputs, taps and declarations.

use metrale_graph::{Node, ValueId, ValueKind};

use super::{Builder, Reader, Result, Step};

impl Builder<'_> {
    pub(super) fn input(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Option<Step>> {
        let name = reader.text("name")?;
        reader.without_effect("width"); // It is in the shape.
        if let Some(side) = reader.optional_size("side")? {
            let known = *self.plan.position_table.get_or_insert(side);
            if known != side {
                let detail = format!("tables of positions of {known} and {side} rows have no kernel");
                return Err(reader.unsupported(&detail));
            }
        }
        let id = node.outputs[0];
        if self.graph.value(id).kind == ValueKind::Float {
            // Rows of images are read where they are merged.
            if name == "image_rows" {
                return Ok(None);
            }
            if !matches!(name, "hidden" | "pixels" | "position_weights") {
                return Err(reader.unsupported(&format!("the input `{name}` is not fed")));
            }
            let reg = self.new_reg(id);
            self.plan.inputs.push((name.to_owned(), reg));
        }
        Ok(None)
    }

    pub(super) fn output(&mut self, reader: &Reader<'_>) -> Result<Option<Step>> {
        let reg = self.reg(reader, 0)?;
        self.plan.outputs.push((reader.text("name")?.to_owned(), reg));
        Ok(None)
    }

    pub(super) fn tap(&mut self, reader: &Reader<'_>) -> Result<Option<Step>> {
        let reg = self.reg(reader, 0)?;
        let (name, index) = (reader.text("name")?, reader.size("index")?);
        self.plan.outputs.push((format!("{name}.{index}"), reg));
        Ok(None)
    }

    /// What a state holds is in the model's list of states; the device refuses what it cannot keep.
    pub(super) fn declare_state(reader: &Reader<'_>) -> Result<Option<Step>> {
        let kind = reader.text("kind")?;
        if kind == "tokens" {
            return Err(reader.unsupported("a state of token ids has no kernel"));
        }
        // All tokens are kept, so a window needs no care here: it is an attribute of attention.
        for key in ["name", "num_heads", "k_dim", "v_dim", "v_is_k_prefix", "window", "shape"] {
            reader.without_effect(key);
        }
        Ok(None)
    }

    /// The input that a value is, or the op that made it.
    pub(super) fn source_of(&self, id: ValueId) -> &str {
        let producer = self.graph.producer(id);
        match producer.attrs.str("name") {
            Some(name) if producer.op.name == "input/1" => name,
            _ => producer.op.name,
        }
    }

    /// Checks that a value is what this entry is fed with: ids of its rows or their positions.
    pub(super) fn expect_fed(&self, reader: &Reader<'_>, id: ValueId, what: Fed) -> Result<()> {
        let expected = match (self.graph.entry.as_str(), what) {
            ("encoder", Fed::Ids) => "source_ids",
            ("encoder", Fed::Positions) => "source_positions",
            ("mtp", Fed::Ids) => "next_ids",
            (_, Fed::Ids) => "token_ids",
            (_, Fed::Positions) => "positions",
        };
        let found = self.source_of(id);
        if found == expected {
            return Ok(());
        }
        Err(reader.unsupported(&format!(
            "works on the input `{expected}` in the entry point `{}`, found `{found}`",
            self.graph.entry
        )))
    }
}

/// What every row of a step comes with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fed {
    /// A token id.
    Ids,
    /// A position.
    Positions,
}
