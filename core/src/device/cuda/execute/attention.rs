//! Keys and values, and attention over them.

use metrale_kernels::Result;
use metrale_kernels::cuda::Element;
use metrale_kernels::cuda::attention::{self, Attention};
use metrale_kernels::cuda::{kv_cache, qkv};

use super::{Executor, given, norm_weight, rotation};
use crate::lower::plan::{Attend, HeadNorm, KvHeads, QkvWrite, Reg, StateId};

impl Executor<'_> {
    pub(super) fn kv_write<T: Element>(&mut self, state: StateId, k: Reg, v: Reg) -> Result<()> {
        let rows = self.inputs.rows;
        let slots = given(self.inputs.slots.as_ref(), "slots")?;
        let (k, v) = (self.registers.read::<T>(k, rows)?, self.registers.read(v, rows)?);
        kv_cache::write(self.cuda, self.states.cache_mut(state)?, k, v, slots)
    }

    pub(super) fn qkv_write<T: Element>(&mut self, step: &QkvWrite) -> Result<()> {
        let (cuda, rows, vectors) = (self.cuda, self.inputs.rows, self.vectors);
        let slots = given(self.inputs.slots.as_ref(), "slots")?;
        let norm = |norm: Option<HeadNorm>| {
            norm.map(|n| qkv::HeadNorm {
                weight: norm_weight(vectors, Some(n.weight), n.zero_centered),
                eps: n.eps,
            })
        };
        let heads = qkv::Heads {
            num_heads: step.heads,
            q_norm: norm(step.q_norm),
            k_norm: norm(step.k_norm),
            rope: step.rope.map(|rope| rotation(self.tables, rows, rope)).transpose()?,
        };
        let cache = self.states.cache_mut(step.state)?;
        let mut taken = self.registers.take::<T>(step.q, rows)?;
        let result = self
            .registers
            .read::<T>(step.x, rows)
            .and_then(|x| qkv::write(cuda, x, heads, slots, &mut taken.elements()?, cache));
        self.registers.put(taken);
        result
    }

    /// Rows see their own sequence, or all of its source.
    pub(super) fn attention<T: Element>(
        &mut self,
        state: StateId,
        q: Reg,
        how: &Attend,
        out: Reg,
    ) -> Result<()> {
        let (cuda, num_rows) = (self.cuda, self.inputs.rows);
        let rows = if how.causal { &self.inputs.attention } else { &self.inputs.sources };
        let rows = given(rows.as_ref(), "sequences")?;
        let mut taken = self.registers.take::<T>(out, num_rows)?;
        let cache = self.states.cache(state);
        let result = cache.and_then(|cache| {
            let q = self.registers.read::<T>(q, num_rows)?;
            attention::paged(cuda, attend(how), q, cache, rows, &mut taken.elements()?)
        });
        self.registers.put(taken);
        result
    }

    pub(super) fn local_attention<T: Element>(
        &mut self,
        q: Reg,
        (k, v): (Reg, Reg),
        heads: KvHeads,
        how: &Attend,
        out: Reg,
    ) -> Result<()> {
        let (cuda, num_rows) = (self.cuda, self.inputs.rows);
        let (slots, rows) = given(self.inputs.local.as_ref(), "rows that attend among themselves")?;
        let Executor { registers, workspace, .. } = self;
        let cache = workspace.local.as_mut().and_then(|local| local.of(heads));
        let cache = cache.ok_or_else(|| metrale_kernels::KernelError::Unsupported {
            op: "attention/1",
            reason: "no pages were planned for the rows".to_owned(),
        })?;
        kv_cache::write(cuda, cache, registers.read::<T>(k, num_rows)?, registers.read(v, num_rows)?, slots)?;
        let mut taken = registers.take::<T>(out, num_rows)?;
        let result = registers
            .read::<T>(q, num_rows)
            .and_then(|q| attention::paged(cuda, attend(how), q, cache, rows, &mut taken.elements()?));
        registers.put(taken);
        result
    }
}

fn attend(how: &Attend) -> Attention {
    Attention {
        num_heads: how.heads,
        scale: how.scale,
        window: how.window,
        softcap: how.softcap,
        keys_per_split: None,
    }
}
