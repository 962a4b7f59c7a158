//! Makes `silu(x · gateᵀ) · (x · upᵀ)` one projection, so that neither half is stored.

use super::{num_reads, projection_mut, stored_by};
use crate::lower::plan::{Combine, Epilogue, Function, Operand, Plan, Reg, Step};

pub(in crate::lower) fn fuse(plan: &mut Plan) {
    while let Some(found) = find(plan, |_| true) {
        let up = plan_projection(plan, found.up);
        if let Some(gate) = projection_mut(plan, found.gate) {
            gate.epilogue = Epilogue::SiluGate { up: up.0, up_bias: up.1 };
            gate.out = found.out;
        }
        if let Step::Linear { projections, .. } = &mut plan.steps[found.up.0].step {
            projections.remove(found.up.1);
        }
        let (first, second) = (found.silu.min(found.mul), found.silu.max(found.mul));
        plan.steps.remove(second);
        plan.steps.remove(first);
    }
}

pub(super) struct Found {
    pub(super) gate: (usize, usize),
    pub(super) up: (usize, usize),
    pub(super) silu: usize,
    pub(super) mul: usize,
    pub(super) out: Reg,
}

fn plan_projection(
    plan: &Plan,
    (step, place): (usize, usize),
) -> (crate::lower::plan::MatrixId, Option<crate::lower::plan::VectorId>) {
    match &plan.steps[step].step {
        Step::Linear { projections, .. } => (projections[place].matrix, projections[place].bias),
        _ => (crate::lower::plan::MatrixId(0), None),
    }
}

/// A silu whose input and output are read once, multiplied with a product of the same launch.
pub(super) fn find(plan: &Plan, accept: impl Fn(&Found) -> bool) -> Option<Found> {
    let reads = num_reads(plan);
    plan.steps.iter().enumerate().find_map(|(silu, planned)| {
        let Step::Unary { f: Function::Silu, x: gate_reg, out: activated } = planned.step else {
            return None;
        };
        let gate = stored_by(plan, gate_reg)?;
        let (mul, up_reg, out) = plan.steps.iter().enumerate().find_map(|(i, s)| match s.step {
            Step::Binary { f: Combine::Mul, a, b: Operand::Reg(b), out, .. } if a == activated => {
                Some((i, b, out))
            }
            Step::Binary { f: Combine::Mul, a, b: Operand::Reg(b), out, .. } if b == activated => {
                Some((i, a, out))
            }
            _ => None,
        })?;
        let up = stored_by(plan, up_reg)?;
        let once = [gate_reg, activated, up_reg].iter().all(|r| reads[r.0] == 1);
        let found = Found { gate, up, silu, mul, out };
        (once && up.0 == gate.0 && up.1 != gate.1 && accept(&found)).then_some(found)
    })
}
