//! The static memory plan: registers that are never alive together share a buffer.
//!
//! A buffer's rows have the bytes of its widest register; all buffers have as many rows as the largest step. Nothing is allocated when
//! a step runs.

use super::plan::{Plan, Reg};

/// Gives every register a buffer.
pub(super) fn assign(plan: &mut Plan) {
    let last_read = last_reads(plan);
    let mut planner =
        Planner { buffers: vec![usize::MAX; plan.widths.len()], row_bytes: Vec::new(), free: Vec::new() };
    for (_, reg) in &plan.inputs {
        planner.allocate(*reg, plan.row_bytes(*reg));
    }
    for (i, planned) in plan.steps.iter().enumerate() {
        let reused = planned.step.in_place().filter(|(from, to)| {
            last_read[from.0] == Some(i) && plan.row_bytes(*from) == plan.row_bytes(*to)
        });
        if let Some((from, to)) = reused {
            planner.buffers[to.0] = planner.buffers[from.0];
        }
        for reg in planned.step.writes() {
            if planner.buffers[reg.0] == usize::MAX {
                planner.allocate(reg, plan.row_bytes(reg));
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
    plan.buffer_row_bytes = planner.row_bytes;
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
    row_bytes: Vec<usize>,
    free: Vec<usize>,
}

impl Planner {
    /// The free buffer that fits best: the narrowest that is wide enough, else the widest, which grows.
    fn allocate(&mut self, reg: Reg, bytes: usize) {
        let best = self
            .free
            .iter()
            .copied()
            .filter(|&b| self.row_bytes[b] >= bytes)
            .min_by_key(|&b| self.row_bytes[b])
            .or_else(|| self.free.iter().copied().max_by_key(|&b| self.row_bytes[b]));
        let buffer = if let Some(buffer) = best {
            self.free.retain(|&b| b != buffer);
            self.row_bytes[buffer] = self.row_bytes[buffer].max(bytes);
            buffer
        } else {
            self.row_bytes.push(bytes);
            self.row_bytes.len() - 1
        };
        self.buffers[reg.0] = buffer;
    }
}
