//! What one kind of device runs and another does not yet.

use super::plan::{ExpertActivation, Plan, Step};
use super::{DeviceKind, LowerError};

/// Refuses steps that a device has no kernel for.
pub(super) fn check(plan: &Plan, device: DeviceKind) -> Result<(), LowerError> {
    if device == DeviceKind::Cpu {
        return Ok(());
    }
    for planned in &plan.steps {
        let (op, detail) = match &planned.step {
            Step::HeadLinear { .. } => ("head_linear/1", ""),
            Step::Index(_) => ("indexer_topk/1", ""),
            Step::SparseAttention { .. } => ("attention/1", "chosen positions have no kernel"),
            Step::KvWrite { v: None, .. } => {
                ("kv_write/1", "values that are a prefix of the keys have no kernel")
            }
            Step::Moe(moe) if !matches!(moe.experts.activation, ExpertActivation::Function(_)) => {
                ("moe/1", "experts with clamped gates have no kernel")
            }
            _ => continue,
        };
        return Err(LowerError { device: device.name(), ..LowerError::new(op, detail, &planned.source) });
    }
    Ok(())
}
