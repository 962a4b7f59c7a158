//! Normalisations over the last axis, computed in f32.

use super::{attr, input, optional};
use crate::dim::show;
use crate::graph::{ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[
    OpSchema {
        name: "rms_norm/1",
        summary: "Root-mean-square norm. Over a sharded axis: local sums of squares, then an all-reduce.",
        formula: "y = w · x / √(mean(x²) + eps), with 1 + w instead of w when zero_centered",
        inputs: &[input("x", "[…, D]"), optional("w", "[D]")],
        variadic: false,
        attrs: &[
            attr("eps", AttrKind::Float, Default::Required, "added to the mean of squares"),
            attr("zero_centered", AttrKind::Bool, Default::Bool(false), "weights are stored as w − 1"),
        ],
        effect: Effect::Pure,
        infer: infer_norm,
    },
    OpSchema {
        name: "layer_norm/1",
        summary: "Layer norm.",
        formula: "y = w · (x − mean(x)) / √(var(x) + eps) + b",
        inputs: &[input("x", "[…, D]"), optional("w", "[D]"), optional("b", "[D]")],
        variadic: false,
        attrs: &[attr("eps", AttrKind::Float, Default::Required, "added to the variance")],
        effect: Effect::Pure,
        infer: infer_norm,
    },
    OpSchema {
        name: "l2_norm/1",
        summary: "Scales to unit length.",
        formula: "y = x / √(Σ x² + eps)",
        inputs: &[input("x", "[…, D]")],
        variadic: false,
        attrs: &[attr("eps", AttrKind::Float, Default::Required, "added to the sum of squares")],
        effect: Effect::Pure,
        infer: infer_norm,
    },
];

fn infer_norm(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let width = x
        .width()
        .ok_or_else(|| OpError::new(format!("normalises {}: the last axis must be fixed", show(&x.shape))))?;
    for i in 1..call.inputs.len() {
        if let Some(w) = call.optional(i)
            && w.fixed_shape() != Some(vec![width])
        {
            return Err(OpError::new(format!(
                "normalises {} and has a weight {}",
                show(&x.shape),
                show(&w.shape)
            ))
            .help("reshape to [T, heads, dim] for a norm per head"));
        }
    }
    Ok(float(x.shape.clone(), x.sharding.settled()))
}
