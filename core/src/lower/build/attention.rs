//! KV writes and attention.

use metrale_graph::{Node, StateKind};

use super::{Builder, Reader, Result, Step};
use crate::lower::plan::{Attend, KvHeads};

impl Builder<'_> {
    /// The encoder writes what the decoder's rows see of the source; other entries write their own rows.
    pub(super) fn kv_write(&mut self, reader: &Reader<'_>) -> Result<Step> {
        let (state, kind) = self.state(reader, reader.input(0))?;
        match (kind, self.graph.entry == "encoder") {
            (StateKind::Cross(_), true) | (StateKind::Kv(_), false) => {}
            (_, true) => return Err(reader.unsupported("an encoder writes states of kind cross only")),
            (_, false) => return Err(reader.unsupported("only an encoder writes a state of kind cross")),
        }
        let k = self.reg(reader, 1)?;
        if reader.optional_input(2).is_none() {
            return Err(reader.unsupported("values that are a prefix of the keys have no kernel"));
        }
        let v = self.reg(reader, 2)?;
        Ok(Step::KvWrite { state, k, v })
    }

    pub(super) fn attention(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let q = self.reg(reader, 0)?;
        let how = self.attend(reader)?;
        // Reads nothing without `select`, which has no kernel.
        reader.only_size("select_block", 1)?;
        if let Some(cache) = reader.optional_input(1) {
            let (state, kind) = self.state(reader, cache)?;
            match kind {
                StateKind::Kv(_) if !how.causal => {
                    return Err(reader.unsupported("the mask `full` over a state of kind kv has no kernel"));
                }
                StateKind::Cross(_) if how.causal => {
                    return Err(
                        reader.unsupported("the mask `causal` over a state of kind cross has no kernel")
                    );
                }
                StateKind::Kv(_) | StateKind::Cross(_) => {}
                _ => return Err(reader.unsupported("needs a state of kind kv or cross")),
            }
            return Ok(Step::Attention { state, q, how, out: self.new_reg(node.outputs[0]) });
        }
        let (k, v) = (self.reg(reader, 2)?, self.reg(reader, 3)?);
        let [count, k_dim] = self.row(reader, reader.input(2))?;
        let [_, v_dim] = self.row(reader, reader.input(3))?;
        let shape = KvHeads { count, k_dim, v_dim };
        Ok(Step::LocalAttention { q, k, v, shape, how, out: self.new_reg(node.outputs[0]) })
    }

    fn attend(&self, reader: &Reader<'_>) -> Result<Attend> {
        let [heads, _] = self.row(reader, reader.input(0))?;
        let how = Attend {
            heads,
            scale: reader.float("scale")?,
            causal: reader.choice("mask", &[("causal", true), ("full", false)])?,
            window: reader.optional_size("window")?,
            softcap: reader.optional_float("softcap")?,
        };
        if how.window.is_some() && !how.causal {
            return Err(reader.unsupported("a window with the mask `full` has no kernel"));
        }
        Ok(how)
    }
}
