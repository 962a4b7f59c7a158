//! Makes `x + product` part of the product's launch.

use super::{num_reads, projection_mut, stored_by};
use crate::lower::plan::{Combine, Epilogue, Operand, Plan, Reg, Step};

pub(in crate::lower) fn fuse(plan: &mut Plan) {
    while let Some((add, projection, residual, out)) = find(plan) {
        if let Some(projection) = projection_mut(plan, projection) {
            projection.epilogue = Epilogue::Residual(residual);
            projection.out = out;
        }
        plan.steps.remove(add);
    }
}

/// An addition of a product that is read once, alone in its launch, with something that was there before it.
fn find(plan: &Plan) -> Option<(usize, (usize, usize), Reg, Reg)> {
    let reads = num_reads(plan);
    plan.steps.iter().enumerate().find_map(|(add, planned)| {
        let Step::Binary { f: Combine::Add, a, b: Operand::Reg(b), out, .. } = planned.step else { return None };
        [(a, b), (b, a)].into_iter().find_map(|(residual, product)| {
            let place = stored_by(plan, product)?;
            let alone = matches!(&plan.steps[place.0].step, Step::Linear { projections, .. } if projections.len() == 1);
            (alone && reads[product.0] == 1 && residual != product && is_ready(plan, residual, place.0))
                .then_some((add, place, residual, out))
        })
    })
}

/// Whether a register is written before a step, or is an input of the plan.
fn is_ready(plan: &Plan, reg: Reg, step: usize) -> bool {
    plan.inputs.iter().any(|i| i.1 == reg)
        || plan.steps[..step].iter().any(|s| s.step.writes().contains(&reg))
}
