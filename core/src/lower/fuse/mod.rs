//! Rewrites of a plan, one per file, named after what they make.

pub(super) mod residual;
pub(super) mod shared_input;
pub(super) mod silu_gate;

use super::plan::{Epilogue, Plan, Projection, Reg, Step};

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
