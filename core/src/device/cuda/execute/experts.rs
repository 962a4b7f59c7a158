//! A mixture of experts: route, two products per pair of row and expert, and the weighted sum.

use metrale_kernels::cuda::elementwise::{self, Binary, Unary};
use metrale_kernels::cuda::moe::{self, ExpertGroups, PairInput, Router, Scoring as KernelScoring, Stacked};
use metrale_kernels::cuda::{Element, ViewMut};
use metrale_kernels::{KernelError, Result};

use super::super::plan::ExpertSpace;
use super::{Executor, unary, unsupported};
use crate::lower::plan::{ExpertActivation, MatrixId, Moe, Scoring};

impl Executor<'_> {
    pub(super) fn moe<T: Element>(&mut self, step: &Moe) -> Result<()> {
        let rows = self.inputs.rows;
        let mut space = self.workspace.experts.take().ok_or_else(|| KernelError::Unsupported {
            op: "moe/1",
            reason: "no buffers were planned for the experts".to_owned(),
        })?;
        let taken = [step.inner, step.chosen, step.out].map(|reg| self.registers.take::<T>(reg, rows));
        let [inner, chosen, out] = taken;
        let (mut inner, mut chosen, mut out) = (inner?, chosen?, out?);
        let result = (|| {
            let outputs = [&mut inner.elements()?, &mut chosen.elements()?, &mut out.elements()?];
            self.mix::<T>(step, &mut space, outputs)
        })();
        for taken in [inner, chosen, out] {
            self.registers.put(taken);
        }
        self.workspace.experts = Some(space);
        result
    }

    fn mix<T: Element>(
        &self,
        step: &Moe,
        space: &mut ExpertSpace,
        [inner, chosen, out]: [&mut ViewMut<'_, T>; 3],
    ) -> Result<()> {
        let (cuda, rows, top_k) = (self.cuda, self.inputs.rows, step.top_k);
        let x = self.registers.read::<T>(step.x, rows)?;
        let router = Router {
            num_experts: step.experts.count,
            top_k,
            scoring: match step.scoring {
                Scoring::Softmax => KernelScoring::Softmax,
                Scoring::Sigmoid => KernelScoring::Sigmoid,
            },
            bias: step.bias.map(|bias| self.vectors[bias.0].view()),
            groups: step.groups.map(|g| ExpertGroups { num_groups: g.count, top_groups: g.top }),
            renormalize: step.renormalize.then_some(0.0),
            scaling_factor: step.scale,
        };
        let mut weights = space.weights.view_mut();
        let mut weights = weights.range(0..rows * top_k)?;
        let logits = self.registers.read(step.logits, rows)?;
        moe::route(cuda, router, logits, &mut space.chosen, &mut weights)?;

        let stacked = |matrix: MatrixId| {
            let weight = &*self.matrices[matrix.0];
            let count = weight.num_rows() / step.experts.count;
            Stacked { weight, stride: count, start: 0, count }
        };
        let pairs = (&space.chosen, top_k);
        moe::expert_linear(cuda, (x, PairInput::Token), stacked(step.experts.gate), pairs, inner)?;
        let ExpertActivation::Function(activation) = step.experts.activation else {
            return Err(unsupported("lowering refuses clamped gates for this device"));
        };
        let activation = unary(activation);
        match step.experts.up {
            None => elementwise::unary_in_place(cuda, activation, inner)?,
            Some(up) => {
                let mut product = space.up.elements_mut::<T>(inner.len())?;
                moe::expert_linear(cuda, (x, PairInput::Token), stacked(up), pairs, &mut product)?;
                if activation == Unary::Silu {
                    elementwise::binary_in_place(cuda, Binary::SiluMul, inner, product.view())?;
                } else {
                    elementwise::unary_in_place(cuda, activation, inner)?;
                    elementwise::binary_in_place(cuda, Binary::Mul, inner, product.view())?;
                }
            }
        }
        let down = stacked(step.experts.down);
        moe::expert_linear(cuda, (inner.view(), PairInput::Pair), down, pairs, chosen)?;
        moe::combine(cuda, chosen.view(), weights.view(), top_k, false, out)
    }
}
