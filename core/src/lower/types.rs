//! Element types of activations.
//!
//! With bf16 activations some values stay f32: logits of the head and of routers, log decays and gates of recurrences,
//! factors of rows. Elementwise steps that lead to nothing else are computed in f32, too. Where a launch needs another type than
//! a register has, a conversion is put before it.

use super::plan::{ElementType, Operand, Plan, Planned, Reg, Step};

/// The output that is always f32.
const LOGITS: &str = "logits";

/// Gives every register its type.
pub(super) fn assign(plan: &mut Plan, activations: ElementType) {
    plan.types = vec![activations; plan.widths.len()];
    if activations == ElementType::F32 {
        return;
    }
    for (name, reg) in &plan.outputs {
        if name == LOGITS {
            plan.types[reg.0] = ElementType::F32;
        }
    }
    widen(plan);
    convert_inputs(plan);
    convert_outputs(plan);
}

/// Makes registers f32 that are read as f32 only, from the last step to the first.
fn widen(plan: &mut Plan) {
    let mut readers = vec![Vec::new(); plan.widths.len()];
    for (i, planned) in plan.steps.iter().enumerate() {
        planned.step.reads().into_iter().for_each(|reg| readers[reg.0].push(i));
    }
    for i in (0..plan.steps.len()).rev() {
        for reg in plan.steps[i].step.reads() {
            let is_output = plan.outputs.iter().any(|(name, output)| *output == reg && name != LOGITS);
            let as_f32 = |&reader: &usize| {
                let mut step = plan.steps[reader].step.clone();
                wanted(&mut step, &plan.types)
                    .iter()
                    .all(|(r, wanted)| **r != reg || *wanted == ElementType::F32)
            };
            if !is_output && readers[reg.0].iter().all(as_f32) {
                plan.types[reg.0] = ElementType::F32;
            }
        }
    }
}

/// The registers that a step reads, each with the type in which its launch takes it.
fn wanted<'a>(step: &'a mut Step, types: &[ElementType]) -> Vec<(&'a mut Reg, ElementType)> {
    let (f32, bf16) = (ElementType::F32, ElementType::BF16);
    let of = |reg: &Reg| types[reg.0];
    let wanted: Vec<ElementType> = match &*step {
        Step::Linear { projections, .. } => {
            let residuals = projections.iter().filter_map(|p| match p.epilogue {
                super::plan::Epilogue::Residual(_) => Some(of(&p.out)),
                _ => None,
            });
            std::iter::once(bf16).chain(residuals).collect()
        }
        Step::DeltaRule { .. } => vec![bf16, bf16, bf16, f32, f32],
        Step::Moe(_) | Step::SparseAttention { .. } => vec![bf16, f32],
        Step::Index(index) => std::iter::once(bf16).chain(index.head_weights.map(|_| f32)).collect(),
        Step::Binary { b: Operand::PerRow(_), out, .. } => vec![of(out), f32],
        Step::Binary { out, .. }
        | Step::RmsNorm { out, .. }
        | Step::LayerNorm { out, .. }
        | Step::L2Norm { out, .. }
        | Step::Unary { out, .. }
        | Step::Affine { out, .. }
        | Step::Clamp { out, .. }
        | Step::MergeImages { out, .. }
        | Step::Reduce { out, .. }
        | Step::Slice { out, .. }
        | Step::Concat { out, .. } => vec![of(out); step.reads().len()],
        // A conversion takes what there is.
        Step::Convert { x, .. } => vec![of(x)],
        Step::Embed { .. }
        | Step::Sinusoid { .. }
        | Step::Rope { .. }
        | Step::KvWrite { .. }
        | Step::QkvWrite(_)
        | Step::GatedHalves { .. }
        | Step::HeadLinear { .. }
        | Step::Attention { .. }
        | Step::LocalAttention { .. }
        | Step::Conv { .. } => vec![bf16; step.reads().len()],
    };
    step.reads_mut().into_iter().zip(wanted).collect()
}

/// Whether the launch of a step writes f32 as well as bf16.
fn writes_any(step: &Step) -> bool {
    matches!(
        step,
        Step::Linear { .. }
            | Step::Embed { .. }
            | Step::Sinusoid { .. }
            | Step::Binary { .. }
            | Step::RmsNorm { .. }
            | Step::LayerNorm { .. }
            | Step::L2Norm { .. }
            | Step::Unary { .. }
            | Step::Affine { .. }
            | Step::Clamp { .. }
            | Step::Index(_)
            | Step::MergeImages { .. }
            | Step::Reduce { .. }
            | Step::Slice { .. }
            | Step::Concat { .. }
            | Step::Convert { .. }
    )
}

fn new_reg(plan: &mut Plan, like: Reg, of: ElementType) -> Reg {
    plan.widths.push(plan.widths[like.0]);
    plan.types.push(of);
    Reg(plan.widths.len() - 1)
}

fn convert_inputs(plan: &mut Plan) {
    let mut i = 0;
    while i < plan.steps.len() {
        let mut planned = plan.steps[i].clone();
        let mut conversions = Vec::new();
        let types = plan.types.clone();
        for (reg, wanted) in wanted(&mut planned.step, &types) {
            if types[reg.0] != wanted {
                let out = new_reg(plan, *reg, wanted);
                conversions.push(Step::Convert { x: *reg, out });
                *reg = out;
            }
        }
        let (source, layer, added) = (planned.source.clone(), planned.layer, conversions.len());
        plan.steps[i] = planned;
        let conversions = conversions.into_iter().map(|step| Planned { step, source: source.clone(), layer });
        plan.steps.splice(i..i, conversions);
        i += added + 1;
    }
}

/// What a launch can only write in bf16 is converted after it.
fn convert_outputs(plan: &mut Plan) {
    let mut i = 0;
    while i < plan.steps.len() {
        let planned = plan.steps[i].clone();
        if !writes_any(&planned.step) {
            for reg in planned.step.writes() {
                if plan.types[reg.0] == ElementType::F32 {
                    let narrow = new_reg(plan, reg, ElementType::BF16);
                    for out in plan.steps[i].step.writes_mut() {
                        if *out == reg {
                            *out = narrow;
                        }
                    }
                    let step = Step::Convert { x: narrow, out: reg };
                    let (source, layer) = (planned.source.clone(), planned.layer);
                    plan.steps.insert(i + 1, Planned { step, source, layer });
                }
            }
        }
        i += 1;
    }
}
