//! KV writes and attention.

use metrale_graph::{Node, StateKind};

use super::{Builder, Reader, Result, Step};
use crate::lower::plan::{Attend, KvHeads, Select};

impl Builder<'_> {
    /// The encoder writes what the decoder's rows see of the source; other entries write their own rows.
    pub(super) fn kv_write(&mut self, reader: &Reader<'_>) -> Result<Step> {
        let (state, kind) = self.state(reader, reader.input(0))?;
        match (kind, self.graph.entry == "encoder") {
            (StateKind::Cross(_), true) | (StateKind::Kv(_), false) => {}
            (_, true) => return Err(reader.unsupported("an encoder writes states of kind cross only")),
            (_, false) => return Err(reader.unsupported("only an encoder writes a state of kind cross")),
        }
        let (StateKind::Kv(layout) | StateKind::Cross(layout)) = kind else {
            return Err(reader.unsupported("needs a state of kind kv or cross"));
        };
        let k = self.reg(reader, 1)?;
        let v = reader.optional_input(2).map(|_| self.reg(reader, 2)).transpose()?;
        if layout.v_is_k_prefix == v.is_some() {
            return Err(reader.unsupported("needs `v` exactly where values are not a prefix of the keys"));
        }
        Ok(Step::KvWrite { state, k, v })
    }

    pub(super) fn attention(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let q = self.reg(reader, 0)?;
        let how = self.attend(reader)?;
        let select = self.select(reader)?;
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
            let out = self.new_reg(node.outputs[0]);
            return Ok(match select {
                Some(select) => Step::SparseAttention { state, q, select, how, out },
                None => Step::Attention { state, q, how, out },
            });
        }
        if select.is_some() {
            return Err(reader.unsupported("`select` without a state has no kernel"));
        }
        let (k, v) = (self.reg(reader, 2)?, self.reg(reader, 3)?);
        let [count, k_dim] = self.row(reader, reader.input(2))?;
        let [_, v_dim] = self.row(reader, reader.input(3))?;
        let shape = KvHeads { count, k_dim, v_dim };
        Ok(Step::LocalAttention { q, k, v, shape, how, out: self.new_reg(node.outputs[0]) })
    }

    fn select(&mut self, reader: &Reader<'_>) -> Result<Option<Select>> {
        let block = reader.size("select_block")?;
        let Some(id) = reader.optional_input(4) else { return Ok(None) };
        let (entries, dims) = (self.reg(reader, 4)?, self.dims(id));
        let num_entries = dims.last().copied().unwrap_or(0);
        Ok(Some(Select { entries, num_entries, per_head: dims.len() == 2, block }))
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
