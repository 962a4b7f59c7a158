//! A mixture of experts: route, two grouped products, and the weighted sum.

use metrale_kernels::cpu::elementwise::{self, Gate};
use metrale_kernels::cpu::moe::{
    self, ExpertGroups, ExpertOp, PairInput, Router, Routing, Scoring as KernelScoring, Stacked,
};

use super::{Executor, Result, unary};
use crate::lower::plan::{ExpertActivation, Moe, Scoring};

impl Executor<'_> {
    pub(super) fn moe(&mut self, step: &Moe) -> Result<()> {
        let rows = self.context.rows;
        let mut inner = self.registers.take(step.inner, rows);
        let mut chosen = self.registers.take(step.chosen, rows);
        let mut out = self.registers.take(step.out, rows);
        let result = self.mix(step, inner.slice(), chosen.slice(), out.slice());
        for taken in [inner, chosen, out] {
            self.registers.put(taken);
        }
        result
    }

    fn mix(&mut self, step: &Moe, inner: &mut [f32], chosen: &mut [f32], out: &mut [f32]) -> Result<()> {
        let (cpu, rows, top_k) = (self.cpu, self.context.rows, step.top_k);
        let (x, logits) = (self.registers.read(step.x, rows), self.registers.read(step.logits, rows));
        let router = Router {
            num_experts: step.experts.count,
            top_k,
            scoring: match step.scoring {
                Scoring::Softmax => KernelScoring::Softmax,
                Scoring::Sigmoid => KernelScoring::Sigmoid,
            },
            bias: step.bias.map(|bias| self.vectors[bias.0].as_slice()),
            groups: step.groups.map(|g| ExpertGroups { num_groups: g.count, top_groups: g.top }),
            renormalize: step.renormalize.then_some(0.0),
            scaling_factor: step.scale,
        };
        let experts = &mut self.workspace.experts[..rows * top_k];
        let weights = &mut self.workspace.expert_weights[..rows * top_k];
        moe::route(router, logits, Routing { experts, weights })?;
        let (experts, weights) = (&*experts, &*weights);

        let stacked = |matrix: crate::lower::plan::MatrixId| {
            Stacked::whole(&self.matrices[matrix.0], step.experts.count)
        };
        let gate = stacked(step.experts.gate);
        let first = match step.experts.up {
            Some(up) => {
                ExpertOp::Gated { gate, up: stacked(up), activation: gating(step.experts.activation) }
            }
            None => ExpertOp::Linear(gate),
        };
        let activations = self.numerics.activations;
        moe::expert_linear(cpu, (x, PairInput::Token), activations, first, (experts, top_k), inner)?;
        let bias_of =
            |bias: Option<crate::lower::plan::VectorId>| bias.map(|bias| self.vectors[bias.0].as_slice());
        if let Some(bias) = bias_of(step.experts.gate_bias) {
            moe::add_expert_bias(cpu, bias, experts, inner)?;
        }
        if let (None, ExpertActivation::Function(f)) = (step.experts.up, step.experts.activation) {
            elementwise::unary_in_place(cpu, unary(f), inner);
        }
        let down = ExpertOp::Linear(stacked(step.experts.down));
        moe::expert_linear(cpu, (inner, PairInput::Pair), activations, down, (experts, top_k), chosen)?;
        if let Some(bias) = bias_of(step.experts.down_bias) {
            moe::add_expert_bias(cpu, bias, experts, chosen)?;
        }
        moe::combine(cpu, chosen, weights, top_k, false, out)
    }
}

fn gating(activation: ExpertActivation) -> Gate {
    match activation {
        ExpertActivation::Function(f) => unary(f).into(),
        ExpertActivation::ClampedSilu { limit } => Gate::ClampedSilu { limit },
        ExpertActivation::SwigluOai { limit, alpha } => Gate::SwigluOai { limit, alpha },
    }
}
