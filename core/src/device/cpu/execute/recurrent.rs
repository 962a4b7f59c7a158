//! Launches that carry state from row to row.

use metrale_kernels::cpu::conv::{self, Conv1d};
use metrale_kernels::cpu::delta_rule::{self, DeltaInputs, DeltaShape, HeadMap};
use metrale_kernels::cpu::elementwise::Unary;

use super::{Executor, Result, unary};
use crate::lower::plan::{DeltaRule, Function, Reg, StateId, VectorId};

impl Executor<'_> {
    pub(super) fn conv(
        &mut self,
        state: StateId,
        x: Reg,
        (weight, kernel): (VectorId, usize),
        activation: Option<Function>,
        out: Reg,
    ) -> Result<()> {
        let (cpu, context) = (self.cpu, self.context);
        let activation = activation.map_or(Unary::Identity, unary);
        let conv = Conv1d { weight: &self.vectors[weight.0], bias: None, kernel, activation };
        let state = self.states.slot_state(state, context.draft_rows)?;
        let mut taken = self.registers.take(out, context.rows);
        let x = self.registers.read(x, context.rows);
        let result = conv::causal_conv1d(cpu, conv, x, context.state_slots, state, taken.slice());
        self.registers.put(taken);
        result
    }

    pub(super) fn delta_rule(
        &mut self,
        state: StateId,
        heads: DeltaRule,
        [q, k, v, g, beta]: [Reg; 5],
        out: Reg,
    ) -> Result<()> {
        let (cpu, context) = (self.cpu, self.context);
        let shape = DeltaShape {
            num_key_heads: heads.key_heads,
            num_value_heads: heads.value_heads,
            key_dim: heads.key_dim,
            value_dim: heads.value_dim,
            head_map: HeadMap::Grouped,
        };
        let state = self.states.slot_state(state, context.draft_rows)?;
        let mut taken = self.registers.take(out, context.rows);
        let read = |reg| self.registers.read(reg, context.rows);
        let inputs = DeltaInputs { q: read(q), k: read(k), v: read(v), g: read(g), beta: read(beta) };
        let result =
            delta_rule::gated_delta_rule(cpu, shape, inputs, context.state_slots, state, taken.slice());
        self.registers.put(taken);
        result
    }
}
