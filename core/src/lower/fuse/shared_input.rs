//! Makes one launch of all products that read the same input: q, k and v; gate and up.

use crate::lower::plan::{Plan, Step};

/// Moves every product to the first one with the same input. Products read nothing but that input and weights, so they can
/// run as soon as it is there.
pub(in crate::lower) fn fuse(plan: &mut Plan) {
    let mut i = 0;
    while i < plan.steps.len() {
        if let Step::Linear { x, .. } = plan.steps[i].step {
            let mut moved = Vec::new();
            let mut j = i + 1;
            while j < plan.steps.len() {
                match &mut plan.steps[j].step {
                    Step::Linear { x: other, projections } if *other == x => {
                        moved.append(projections);
                        plan.steps.remove(j);
                    }
                    _ => j += 1,
                }
            }
            if let Step::Linear { projections, .. } = &mut plan.steps[i].step {
                projections.append(&mut moved);
            }
        }
        i += 1;
    }
}
