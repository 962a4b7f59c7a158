//! Keys and values, and attention over them.

use metrale_kernels::KernelError;
use metrale_kernels::cpu::attention::{self, Attention, Mask};
use metrale_kernels::cpu::kv_cache;

use super::{Executor, Result};
use crate::lower::plan::{Attend, KvHeads, Reg, StateId};

impl Executor<'_> {
    pub(super) fn kv_write(&mut self, state: StateId, k: Reg, v: Reg) -> Result<()> {
        let rows = self.context.rows;
        let (k, v) = (self.registers.read(k, rows), self.registers.read(v, rows));
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
