//! Keys and values, and attention over them.

use metrale_kernels::KernelError;
use metrale_kernels::cpu::attention::{self, Attention, Indexer, Mask, Selected};
use metrale_kernels::cpu::kv_cache;

use super::{Executor, Result};
use crate::lower::plan::{Attend, Index, KvHeads, Pool, Reg, Select, StateId};

impl Executor<'_> {
    pub(super) fn kv_write(&mut self, state: StateId, k: Reg, v: Option<Reg>) -> Result<()> {
        let rows = self.context.rows;
        let k = self.registers.read(k, rows);
        let v = v.map_or(&[][..], |v| self.registers.read(v, rows));
        kv_cache::write(self.states.cache_mut(state)?, k, v, self.context.slots)
    }

    /// Rows see their own sequence, or all of its source.
    pub(super) fn attention(&mut self, state: StateId, q: Reg, how: &Attend, out: Reg) -> Result<()> {
        let (cpu, context) = (self.cpu, self.context);
        let cache = self.states.cache(state)?;
        let sequences = if how.causal { context.sequences } else { context.sources };
        let mut taken = self.registers.take(out, context.rows);
        let q = self.registers.read(q, context.rows);
        let result = attention::paged(cpu, attend(how), q, cache, sequences, taken.slice());
        self.registers.put(taken);
        result
    }

    /// Rows see chosen positions of their own sequence, or of its source.
    pub(super) fn sparse_attention(
        &mut self,
        state: StateId,
        (q, select): (Reg, Select),
        how: &Attend,
        out: Reg,
    ) -> Result<()> {
        let (cpu, context) = (self.cpu, self.context);
        let cache = self.states.cache(state)?;
        let sequences = if how.causal { context.sequences } else { context.sources };
        let mut taken = self.registers.take(out, context.rows);
        let q = self.registers.read(q, context.rows);
        let selected = Selected {
            entries: self.registers.read(select.entries, context.rows),
            num_entries: select.num_entries,
            per_head: select.per_head,
            block: select.block,
        };
        let out = taken.slice();
        let result = attention::paged_selected(cpu, attend(how), selected, q, cache, sequences, out);
        self.registers.put(taken);
        result
    }

    pub(super) fn index(&mut self, step: &Index) -> Result<()> {
        let (cpu, context) = (self.cpu, self.context);
        let keys = self.states.cache(step.state)?;
        let indexer = Indexer {
            num_heads: step.heads,
            top_k: step.top_k,
            scale: step.scale,
            relu: step.relu,
            per_head: step.per_head,
            pool: match step.pool {
                Pool::Positions => attention::Pool::Positions,
                Pool::MaxScores { block, local_blocks } => attention::Pool::MaxScores { block, local_blocks },
            },
        };
        let mut taken = self.registers.take(step.out, context.rows);
        let q = self.registers.read(step.q, context.rows);
        let head_weights = step.head_weights.map(|w| self.registers.read(w, context.rows));
        let inputs = (q, head_weights);
        let result = attention::index(cpu, indexer, inputs, keys, context.sequences, taken.slice());
        self.registers.put(taken);
        result
    }

    pub(super) fn local_attention(
        &mut self,
        q: Reg,
        (k, v): (Reg, Reg),
        heads: KvHeads,
        how: &Attend,
        out: Reg,
    ) -> Result<()> {
        let (cpu, context) = (self.cpu, self.context);
        let local = self.workspace.local.as_mut().and_then(|local| local.of(heads, context.sequences));
        let local = local.ok_or_else(|| KernelError::Unsupported {
            op: "attention/1",
            reason: "no pages were planned for the rows".to_owned(),
        })?;
        let read = |reg| self.registers.read(reg, context.rows);
        kv_cache::write(local.cache, read(k), read(v), local.slots)?;
        let mut taken = self.registers.take(out, context.rows);
        let q = self.registers.read(q, context.rows);
        let result = attention::paged(cpu, attend(how), q, local.cache, &local.sequences, taken.slice());
        self.registers.put(taken);
        result
    }
}

fn attend(how: &Attend) -> Attention {
    let mask = if how.causal { Mask::Causal { window: how.window } } else { Mask::Full };
    Attention { num_heads: how.heads, scale: how.scale, mask, softcap: how.softcap }
}
