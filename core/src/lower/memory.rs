//! The static memory plan: registers that are never alive together share a buffer.
//!
//! A buffer is as wide as its widest register; all buffers have as many rows as the largest step. Nothing is allocated when
//! a step runs.

use super::plan::{Plan, Reg};

/// Gives every register a buffer.
pub(super) fn assign(plan: &mut Plan) {
    let last_read = last_reads(plan);
    let mut planner =
        Planner { buffers: vec![usize::MAX; plan.widths.len()], widths: Vec::new(), free: Vec::new() };
    for (_, reg) in &plan.inputs {
        planner.allocate(*reg, plan.width_per_row(*reg));
    }
    for (i, planned) in plan.steps.iter().enumerate() {
        let reused = planned.step.in_place().filter(|(from, to)| {
            last_read[from.0] == Some(i) && plan.width_per_row(*from) == plan.width_per_row(*to)
        });
        if let Some((from, to)) = reused {
            planner.buffers[to.0] = planner.buffers[from.0];
        }
        for reg in planned.step.writes() {
            if planner.buffers[reg.0] == usize::MAX {
                planner.allocate(reg, plan.width_per_row(reg));
            }
        }
        let mut dead: Vec<Reg> = planned.step.reads().into_iter().chain(planned.step.writes()).collect();
        dead.sort_unstable();
        dead.dedup();
        for reg in dead {
            let handed_on = reused.is_some_and(|(from, _)| from == reg);
            if last_read[reg.0].is_none_or(|last| last <= i) && !handed_on {
                planner.free.push(planner.buffers[reg.0]);
            }
        }
    }
    plan.buffers = planner.buffers;
    plan.buffer_widths = planner.widths;
}

/// The step that reads each register last; outputs are read after the end.
fn last_reads(plan: &Plan) -> Vec<Option<usize>> {
    let mut last = vec![None; plan.widths.len()];
    for (i, planned) in plan.steps.iter().enumerate() {
        for reg in planned.step.reads() {
            last[reg.0] = Some(i);
        }
    }
    for (_, reg) in &plan.outputs {
        last[reg.0] = Some(usize::MAX);
    }
    last
}

struct Planner {
    buffers: Vec<usize>,
    widths: Vec<usize>,
    free: Vec<usize>,
}

impl Planner {
    /// The free buffer that fits best: the narrowest that is wide enough, else the widest, which grows.
    fn allocate(&mut self, reg: Reg, width: usize) {
        let best = self
            .free
            .iter()
            .copied()
            .filter(|&b| self.widths[b] >= width)
            .min_by_key(|&b| self.widths[b])
            .or_else(|| self.free.iter().copied().max_by_key(|&b| self.widths[b]));
        let buffer = if let Some(buffer) = best {
            self.free.retain(|&b| b != buffer);
            self.widths[buffer] = self.widths[buffer].max(width);
            buffer
        } else {
            self.widths.push(width);
            self.widths.len() - 1
        };
        self.buffers[reg.0] = buffer;
    }
}
