//! Makes one product of gate and up, and one launch of what follows: `silu(gate) · up`.

use super::silu_gate::find;
use super::{merge, mergeable, new_reg, replace};
use crate::lower::plan::{Epilogue, Function, Plan, Projection, Step};

pub(in crate::lower) fn fuse(plan: &mut Plan) {
    while let Some(found) = find(plan, |found| mergeable(plan, &[found.gate, found.up]).is_some()) {
        let places = [found.gate, found.up];
        let Some(parts) = mergeable(plan, &places) else { return };
        let matrix = merge(plan, &parts);
        let x = new_reg(plan, 2 * plan.widths[found.out.0]);
        replace(plan, &places, Projection { matrix, bias: None, epilogue: Epilogue::Store, out: x });
        let (first, second) = (found.silu.min(found.mul), found.silu.max(found.mul));
        plan.steps[second].step = Step::GatedHalves { f: Function::Silu, x, out: found.out };
        plan.steps.remove(first);
    }
}
