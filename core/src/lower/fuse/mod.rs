//! Rewrites of a plan, one per file, named after what they make.

pub(super) mod merged_gate;
pub(super) mod merged_qkv;
pub(super) mod residual;
pub(super) mod shared_input;
pub(super) mod silu_gate;

use metrale_graph::resolve::{Expr, ResolvedWeight};

use super::plan::{Epilogue, MatrixId, Plan, Projection, Reg, Step};

/// How often each register is read by a step or as an output.
fn num_reads(plan: &Plan) -> Vec<usize> {
    let mut reads = vec![0; plan.widths.len()];
    for reg in plan.steps.iter().flat_map(|s| s.step.reads()).chain(plan.outputs.iter().map(|o| o.1)) {
        reads[reg.0] += 1;
    }
    reads
}

/// The projection that stores `reg`: its step and its place in the step.
fn stored_by(plan: &Plan, reg: Reg) -> Option<(usize, usize)> {
    plan.steps.iter().enumerate().find_map(|(i, planned)| match &planned.step {
        Step::Linear { projections, .. } => {
            projections.iter().position(|p| p.out == reg && p.epilogue == Epilogue::Store).map(|j| (i, j))
        }
        _ => None,
    })
}

fn projection_mut(plan: &mut Plan, (step, place): (usize, usize)) -> Option<&mut Projection> {
    match &mut plan.steps.get_mut(step)?.step {
        Step::Linear { projections, .. } => projections.get_mut(place),
        _ => None,
    }
}

/// The projections whose matrices are to be one, if they can be: plain products of one launch, without biases, with
/// weights that are stored alike.
fn mergeable(plan: &Plan, places: &[(usize, usize)]) -> Option<Vec<Projection>> {
    let step = places.first()?.0;
    let Step::Linear { projections, .. } = &plan.steps[step].step else { return None };
    let parts: Vec<Projection> = places.iter().map(|&(_, place)| projections[place]).collect();
    let alike = |p: &Projection| {
        let of = |p: &Projection| {
            let expr = &plan.matrices[p.matrix.0].expr;
            (expr.dtype(), expr.tensors().is_empty(), expr.shape().len(), expr.shape().last().copied())
        };
        of(p) == of(&parts[0]) && p.bias.is_none() && p.epilogue == Epilogue::Store
    };
    let whole = plan.matrices[parts[0].matrix.0].expr.shape().len() == 2;
    let together = places.iter().all(|place| place.0 == step);
    (together && whole && parts.iter().all(alike)).then_some(parts)
}

/// A matrix with the rows of several others, one after another.
fn merge(plan: &mut Plan, parts: &[Projection]) -> MatrixId {
    let weights: Vec<ResolvedWeight> = parts.iter().map(|p| plan.matrices[p.matrix.0].clone()).collect();
    let expr = Expr::Stack { parts: weights.iter().map(|w| w.expr.clone()).collect(), axis: 0 };
    let name = weights.iter().map(|w| w.name.as_str()).collect::<Vec<_>>().join(" + ");
    let role = weights.first().map(|w| w.role.clone()).unwrap_or_default();
    plan.matrices.push(ResolvedWeight { name, role, shape: expr.shape(), expr });
    MatrixId(plan.matrices.len() - 1)
}

/// Puts one projection in the place of several of the same launch.
fn replace(plan: &mut Plan, places: &[(usize, usize)], by: Projection) {
    if let Some(Step::Linear { projections, .. }) = places.first().map(|place| &mut plan.steps[place.0].step)
    {
        let mut at = 0;
        projections.retain(|_| {
            at += 1;
            !places.iter().any(|&(_, place)| place + 1 == at)
        });
        projections.insert(0, by);
    }
}

/// A register that no value names.
fn new_reg(plan: &mut Plan, width: usize) -> Reg {
    plan.widths.push(width);
    Reg(plan.widths.len() - 1)
}
