//! What launches must read and compute, whatever the device: each weight, key and value once.

use super::Work;
use crate::lower::Plan;
use crate::lower::plan::{Epilogue, KvHeads, MatrixId, Step};

/// A decode step, as far as work depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecodeStep {
    pub(super) num_seqs: usize,
    pub(super) context: usize,
    /// Bytes of a key's or value's element.
    pub(super) kv_element: usize,
}

impl DecodeStep {
    /// Work of one launch; `bytes_of` gives the stored bytes of a matrix, `heads_of` the heads of a cache.
    pub(super) fn work(
        self,
        plan: &Plan,
        step: &Step,
        bytes_of: &dyn Fn(MatrixId) -> usize,
        heads_of: &dyn Fn(crate::lower::plan::StateId) -> Option<KvHeads>,
    ) -> Work {
        let rows = self.num_seqs as f64;
        let matrix = |m: MatrixId| Work {
            bytes: bytes_of(m) as f64,
            flops: 2.0 * rows * plan.matrices[m.0].shape.iter().product::<usize>() as f64,
        };
        let mut work = Work::default();
        match step {
            Step::Linear { projections, .. } => {
                for p in projections {
                    work += matrix(p.matrix);
                    if let Epilogue::SiluGate { up, .. } = p.epilogue {
                        work += matrix(up);
                    }
                }
            }
            Step::Moe(moe) => {
                let experts = moe.experts;
                // With uniform routing.
                let (count, picks) = (experts.count as f64, rows * moe.top_k as f64);
                let share = 1.0 - (1.0 - 1.0 / count).powf(picks);
                for m in [Some(experts.gate), experts.up, Some(experts.down)].into_iter().flatten() {
                    let all = matrix(m);
                    work += Work { bytes: all.bytes * share, flops: all.flops * moe.top_k as f64 / count };
                }
            }
            Step::Attention { state, how, .. } => {
                if let Some(heads) = heads_of(*state) {
                    let keys = rows * how.window.map_or(self.context, |w| w.min(self.context)) as f64;
                    let widths = (heads.k_dim + heads.v_dim) as f64;
                    work.bytes = keys * heads.count as f64 * widths * self.kv_element as f64;
                    work.flops = 2.0 * keys * how.heads as f64 * widths;
                }
            }
            _ => {}
        }
        work
    }
}

/// What a launch is, for people: the op and the shape of its weight.
pub(super) fn name(plan: &Plan, step: &Step) -> String {
    let shape = |m: MatrixId| format!("{:?}", plan.matrices[m.0].shape);
    match step {
        Step::Embed { .. } => "embedding".to_owned(),
        Step::Linear { projections, .. } => {
            let shapes: Vec<_> = projections.iter().map(|p| shape(p.matrix)).collect();
            format!("linear {}", shapes.join(" "))
        }
        Step::Moe(moe) => format!("experts {}", shape(moe.experts.gate)),
        Step::RmsNorm { width, .. } => format!("rms_norm {width}"),
        Step::LayerNorm { width, .. } => format!("layer_norm {width}"),
        Step::L2Norm { .. } => "l2_norm".to_owned(),
        Step::Sinusoid { .. } => "sinusoid".to_owned(),
        Step::Rope { .. } => "rope".to_owned(),
        Step::KvWrite { .. } => "kv_write".to_owned(),
        Step::QkvWrite(_) => "norm, rope, kv_write".to_owned(),
        Step::Attention { .. } | Step::LocalAttention { .. } => "attention".to_owned(),
        Step::Conv { .. } => "causal_conv1d".to_owned(),
        Step::DeltaRule { .. } => "gated_delta_rule".to_owned(),
        Step::Unary { .. } | Step::Binary { .. } | Step::Affine { .. } | Step::Clamp { .. } => {
            "elementwise".to_owned()
        }
        Step::Reduce { .. } => "reduce".to_owned(),
        Step::HeadLinear { matrix, .. } => format!("linear per head {}", shape(*matrix)),
        Step::Index(_) => "indexer".to_owned(),
        Step::SparseAttention { .. } => "sparse attention".to_owned(),
        Step::MergeImages { .. } => "images".to_owned(),
        Step::GatedHalves { .. } => "gated".to_owned(),
        Step::Convert { .. } | Step::Slice { .. } | Step::Concat { .. } => "copies".to_owned(),
    }
}
