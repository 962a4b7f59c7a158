//! Makes one product of queries, keys and values, and one launch of what lies between them and attention: head norms,
//! rotation, and the write to the cache.

use super::{merge, mergeable, new_reg, num_reads, replace, stored_by};
use crate::lower::plan::{Epilogue, HeadNorm, Plan, Projection, QkvWrite, Reg, StateId, Step, TableId};

pub(in crate::lower) fn fuse(plan: &mut Plan) {
    while let Some(found) = find(plan) {
        let Some(parts) = mergeable(plan, &found.projections) else { return };
        let matrix = merge(plan, &parts);
        let x = new_reg(plan, parts.iter().map(|p| plan.widths[p.out.0]).sum());
        replace(
            plan,
            &found.projections,
            Projection { matrix, bias: None, epilogue: Epilogue::Store, out: x },
        );
        plan.steps[found.write].step = Step::QkvWrite(Box::new(QkvWrite { x, ..found.how }));
        let mut gone = [found.q.steps, found.k.steps].concat();
        gone.sort_unstable();
        gone.into_iter().rev().for_each(|step| {
            plan.steps.remove(step);
        });
    }
}

struct Found {
    /// Of queries, keys and values.
    projections: [(usize, usize); 3],
    write: usize,
    q: Path,
    k: Path,
    how: QkvWrite,
}

/// From a projection to where its heads are used.
#[derive(Clone)]
struct Path {
    projection: (usize, usize),
    norm: Option<HeadNorm>,
    rope: Option<(TableId, bool)>,
    /// Steps that the fused launch takes over.
    steps: Vec<usize>,
}

/// A write of keys that come straight from projections, and attention over the same cache whose queries do, too.
fn find(plan: &Plan) -> Option<Found> {
    let reads = num_reads(plan);
    plan.steps.iter().enumerate().find_map(|(write, planned)| {
        let Step::KvWrite { state, k, v: Some(v) } = planned.step else { return None };
        let (q, heads) = queries(plan, write, state)?;
        let (q_path, k_path) = (path(plan, &reads, q)?, path(plan, &reads, k)?);
        let values = stored_by(plan, v).filter(|_| reads[v.0] == 1)?;
        let projections = [q_path.projection, k_path.projection, values];
        mergeable(plan, &projections)?;
        let before = [&q_path, &k_path].iter().all(|path| path.steps.iter().all(|&step| step < write));
        let how =
            QkvWrite { x: q, heads, q_norm: q_path.norm, k_norm: k_path.norm, rope: q_path.rope, state, q };
        (before && q_path.rope == k_path.rope).then_some(Found {
            projections,
            write,
            q: q_path,
            k: k_path,
            how,
        })
    })
}

/// The queries of the first attention over a cache after it was written, and their heads.
fn queries(plan: &Plan, write: usize, state: StateId) -> Option<(Reg, usize)> {
    plan.steps[write..].iter().find_map(|planned| match &planned.step {
        Step::Attention { state: read, q, how, .. } if *read == state => Some((*q, how.heads)),
        _ => None,
    })
}

/// Follows heads back over a rotation and a norm, each read by nothing else, to their projection.
fn path(plan: &Plan, reads: &[usize], reg: Reg) -> Option<Path> {
    let (mut at, mut rope, mut norm, mut steps) = (reg, None, None, Vec::new());
    for _ in 0..3 {
        if reads[at.0] != 1 {
            return None;
        }
        if let Some(projection) = stored_by(plan, at) {
            return Some(Path { projection, norm, rope, steps });
        }
        let (step, planned) = plan.steps.iter().enumerate().find(|(_, s)| s.step.writes() == [at])?;
        match planned.step {
            Step::Rope { x, table, interleaved, .. } if rope.is_none() && norm.is_none() => {
                rope = Some((table, interleaved));
                at = x;
            }
            Step::RmsNorm { x, weight: Some(weight), zero_centered, eps, .. } if norm.is_none() => {
                norm = Some(HeadNorm { weight, zero_centered, eps });
                at = x;
            }
            _ => return None,
        }
        steps.push(step);
    }
    None
}
