//! Which registers a launch reads and writes.

use super::{Epilogue, Operand, Plan, Projection, Reg, StateId, Step};

impl Step {
    /// Registers that it reads.
    #[must_use]
    pub fn reads(&self) -> Vec<Reg> {
        let mut copy = self.clone();
        copy.reads_mut().into_iter().map(|reg| *reg).collect()
    }

    /// Registers that it reads, to be exchanged for others.
    pub(crate) fn reads_mut(&mut self) -> Vec<&mut Reg> {
        match self {
            Self::Embed { .. } | Self::Sinusoid { .. } => vec![],
            Self::Linear { x, projections } => {
                let residuals = projections.iter_mut().filter_map(|p| match &mut p.epilogue {
                    Epilogue::Residual(r) => Some(r),
                    _ => None,
                });
                std::iter::once(x).chain(residuals).collect()
            }
            Self::RmsNorm { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::L2Norm { x, .. }
            | Self::Rope { x, .. }
            | Self::Conv { x, .. }
            | Self::Unary { x, .. }
            | Self::Affine { x, .. }
            | Self::Clamp { x, .. }
            | Self::MergeImages { x, .. }
            | Self::Reduce { x, .. }
            | Self::Convert { x, .. }
            | Self::HeadLinear { x, .. }
            | Self::GatedHalves { x, .. }
            | Self::Slice { x, .. } => vec![x],
            Self::QkvWrite(qkv) => vec![&mut qkv.x],
            Self::KvWrite { k, v, .. } => std::iter::once(k).chain(v).collect(),
            Self::Index(index) => std::iter::once(&mut index.q).chain(&mut index.head_weights).collect(),
            Self::SparseAttention { q, select, .. } => vec![q, &mut select.entries],
            Self::LocalAttention { q, k, v, .. } => vec![q, k, v],
            Self::DeltaRule { q, k, v, g, beta, .. } => vec![q, k, v, g, beta],
            Self::Moe(moe) => vec![&mut moe.x, &mut moe.logits],
            Self::Attention { q, .. } => vec![q],
            Self::Binary { a, b, .. } => match b {
                Operand::Reg(b) | Operand::PerRow(b) => vec![a, b],
                Operand::Vector(_) => vec![a],
            },
            Self::Concat { parts, .. } => parts.iter_mut().map(|p| &mut p.0).collect(),
        }
    }

    /// Registers that it writes.
    #[must_use]
    pub fn writes(&self) -> Vec<Reg> {
        let mut copy = self.clone();
        copy.writes_mut().into_iter().map(|reg| *reg).collect()
    }

    /// Registers that it writes, to be exchanged for others.
    pub(crate) fn writes_mut(&mut self) -> Vec<&mut Reg> {
        match self {
            Self::Linear { projections, .. } => projections.iter_mut().map(|p| &mut p.out).collect(),
            Self::KvWrite { .. } => vec![],
            Self::Moe(moe) => vec![&mut moe.inner, &mut moe.chosen, &mut moe.out],
            Self::QkvWrite(qkv) => vec![&mut qkv.q],
            Self::Index(index) => vec![&mut index.out],
            Self::Embed { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::LayerNorm { out, .. }
            | Self::L2Norm { out, .. }
            | Self::Sinusoid { out, .. }
            | Self::LocalAttention { out, .. }
            | Self::Conv { out, .. }
            | Self::DeltaRule { out, .. }
            | Self::Rope { out, .. }
            | Self::Attention { out, .. }
            | Self::Unary { out, .. }
            | Self::Binary { out, .. }
            | Self::Affine { out, .. }
            | Self::Clamp { out, .. }
            | Self::MergeImages { out, .. }
            | Self::Reduce { out, .. }
            | Self::Convert { out, .. }
            | Self::GatedHalves { out, .. }
            | Self::HeadLinear { out, .. }
            | Self::SparseAttention { out, .. }
            | Self::Slice { out, .. }
            | Self::Concat { out, .. } => vec![out],
        }
    }

    /// The recurrent state that it changes, and the registers that the change is computed from.
    fn recurrence(&self) -> Option<(StateId, Vec<Reg>)> {
        match self {
            Self::Conv { state, x, .. } => Some((*state, vec![*x])),
            Self::DeltaRule { state, k, v, g, beta, .. } => Some((*state, vec![*k, *v, *g, *beta])),
            _ => None,
        }
    }

    /// The register that the output may overwrite, if that register is not read again.
    #[must_use]
    pub fn in_place(&self) -> Option<(Reg, Reg)> {
        match self {
            Self::RmsNorm { x, out, .. }
            | Self::L2Norm { x, out, .. }
            | Self::Rope { x, out, .. }
            | Self::Unary { x, out, .. }
            | Self::MergeImages { x, out }
            | Self::Affine { x, out, .. }
            | Self::Clamp { x, out, .. } => Some((*x, *out)),
            Self::Binary { a, b, out, .. } if !matches!(b, Operand::Reg(b) | Operand::PerRow(b) if b == a) => {
                Some((*a, *out))
            }
            Self::Linear { x, projections } => match projections.as_slice() {
                [Projection { epilogue: Epilogue::Residual(r), out, .. }] if r != x => Some((*r, *out)),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Plan {
    /// Recurrent states with the numbers per row that change them: what has to be kept of a row that may be taken back.
    pub fn recurrent_inputs(&self) -> impl Iterator<Item = (StateId, usize)> + '_ {
        self.steps.iter().filter_map(|planned| {
            let (state, regs) = planned.step.recurrence()?;
            Some((state, regs.iter().map(|reg| self.widths[reg.0]).sum()))
        })
    }
}
