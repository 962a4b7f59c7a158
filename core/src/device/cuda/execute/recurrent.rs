//! Launches that carry state from row to row. Rows that fill up a step belong to no sequence, and are left out.

use metrale_kernels::Result;
use metrale_kernels::cuda::Element;
use metrale_kernels::cuda::conv::{self, Conv1d};
use metrale_kernels::cuda::delta_rule::{self, DeltaInputs, DeltaShape, HeadMap};
use metrale_kernels::cuda::elementwise::Unary;

use super::{Executor, given, unary};
use crate::lower::plan::{DeltaRule, Function, Reg, StateId, VectorId};

impl Executor<'_> {
    pub(super) fn conv<T: Element>(
        &mut self,
        state: StateId,
        x: Reg,
        (weight, kernel): (VectorId, usize),
        activation: Option<Function>,
        out: Reg,
    ) -> Result<()> {
        let sequences = given(self.inputs.recurrent.as_ref(), "state slots")?;
        let (cuda, rows) = (self.cuda, sequences.num_rows());
        let activation = activation.map_or(Unary::Identity, unary);
        let conv = Conv1d { weight: self.vectors[weight.0].view(), bias: None, kernel, activation };
        let mut state = self.states.slots_mut(state)?;
        let mut taken = self.registers.take::<T>(out, rows)?;
        let result = self
            .registers
            .read::<T>(x, rows)
            .and_then(|x| conv::causal_conv1d(cuda, conv, x, sequences, &mut state, &mut taken.elements()?));
        self.registers.put(taken);
        result
    }

    pub(super) fn delta_rule<T: Element>(
        &mut self,
        state: StateId,
        heads: DeltaRule,
        [q, k, v]: [Reg; 3],
        [g, beta]: [Reg; 2],
        out: Reg,
    ) -> Result<()> {
        let sequences = given(self.inputs.recurrent.as_ref(), "state slots")?;
        let (cuda, rows) = (self.cuda, sequences.num_rows());
        let shape = DeltaShape {
            num_key_heads: heads.key_heads,
            num_value_heads: heads.value_heads,
            key_dim: heads.key_dim,
            value_dim: heads.value_dim,
            head_map: HeadMap::Grouped,
        };
        let mut state = self.states.slots_mut(state)?;
        let mut taken = self.registers.take::<T>(out, rows)?;
        let registers = &*self.registers;
        let result = (|| {
            let inputs = DeltaInputs {
                q: registers.read::<T>(q, rows)?,
                k: registers.read(k, rows)?,
                v: registers.read(v, rows)?,
                g: registers.read(g, rows)?,
                beta: registers.read(beta, rows)?,
            };
            delta_rule::gated_delta_rule(cuda, shape, inputs, sequences, &mut state, &mut taken.elements()?)
        })();
        self.registers.put(taken);
        result
    }
}
