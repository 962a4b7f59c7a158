//! Mixture of experts.

use super::{attr, input, optional};
use crate::dim::show;
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[OpSchema {
    name: "moe/1",
    summary: "A weighted sum over the experts that a router chose. Router softmax: p over all experts, the top_k largest. Router sigmoid: choice by s + bias within the best top_groups of num_groups (a group scores the sum of its two best), weights are s without the bias. renormalize divides by their sum. Ties go to the lower index. Scores are f32. An expert computes down·inner + down_bias, with g = gate·x + gate_bias and u = up·x + up_bias; without up, inner = act(g) for the activations silu, relu and gelu.",
    formula: "y = scale · Σₑ weightₑ · expertₑ(x);  silu: inner = silu(min(g, limit)) ∘ clamp(u, ±limit);  swigluoai: g = min(g, limit), inner = (clamp(u, ±limit) + 1) ∘ g ∘ sigmoid(alpha · g);  relu, gelu: inner = act(g) ∘ u",
    inputs: &[
        input("x", "[T, H]"),
        input("logits", "[T, E]"),
        input("gate", "[E, I, H]"),
        optional("up", "[E, I, H]; left out for experts of two matrices"),
        input("down", "[E, H, I]"),
        optional("bias", "[E], for the choice only"),
        optional("gate_bias", "[E, I]"),
        optional("up_bias", "[E, I]"),
        optional("down_bias", "[E, H]"),
    ],
    variadic: false,
    attrs: &[
        attr("router", AttrKind::Str, Default::Required, "softmax or sigmoid"),
        attr("top_k", AttrKind::Int, Default::Required, "experts per token"),
        attr("renormalize", AttrKind::Bool, Default::Bool(true), "weights add up to 1 before scale"),
        attr("scale", AttrKind::Float, Default::Float(1.0), "multiplies the weights"),
        attr("num_groups", AttrKind::Int, Default::Int(1), "groups of experts"),
        attr("top_groups", AttrKind::Int, Default::Int(1), "groups that may be chosen from"),
        attr("activation", AttrKind::Str, Default::Str("silu"), "silu, swigluoai, relu or gelu"),
        attr("limit", AttrKind::Float, Default::Absent, "clamps g from above and u from both sides"),
        attr("alpha", AttrKind::Float, Default::Float(1.702), "of swigluoai"),
    ],
    effect: Effect::Pure,
    infer: infer_moe,
}];

fn infer_moe(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let logits = call.typed(1, "logits", ValueKind::Float)?;
    let experts = check_shapes(call, x, logits)?;
    let (top_k, groups, top_groups) =
        (call.size("top_k")?, call.size("num_groups")?, call.size("top_groups")?);
    let sane = (1..=experts).contains(&top_k)
        && groups >= 1
        && experts.is_multiple_of(groups)
        && (1..=groups).contains(&top_groups)
        && top_k <= experts / groups * top_groups;
    if !sane {
        return Err(OpError::new(format!(
            "cannot choose {top_k} of {experts} experts from {top_groups} of {groups} groups"
        )));
    }
    call.choice("router", &["softmax", "sigmoid"])?;
    let activation = call.choice("activation", &["silu", "swigluoai", "relu", "gelu"])?;
    if activation == "swigluoai" && call.optional(3).is_none() {
        return Err(OpError::new("with the activation swigluoai needs `up`"));
    }
    Ok(float(x.shape.clone(), Sharding::Partial))
}

/// Checks all shapes and returns the number of experts.
fn check_shapes(call: &Call<'_>, x: &ValueInfo, logits: &ValueInfo) -> Result<usize, OpError> {
    let gate = call.typed(2, "gate", ValueKind::Weight)?;
    let [experts, inner, hidden] = gate
        .fixed_shape()
        .and_then(|s| s.try_into().ok())
        .ok_or_else(|| OpError::new(format!("`gate` must have three axes, found {}", show(&gate.shape))))?;
    if x.shape.len() != 2 || x.width() != Some(hidden) || logits.width() != Some(experts) {
        return Err(OpError::new(format!(
            "has x {}, logits {} and gate [{experts}, {inner}, {hidden}]; expected [T, H], [T, E], [E, I, H]",
            show(&x.shape),
            show(&logits.shape)
        )));
    }
    let expected: [(usize, &str, &[usize]); 6] = [
        (3, "up", &[experts, inner, hidden]),
        (4, "down", &[experts, hidden, inner]),
        (5, "bias", &[experts]),
        (6, "gate_bias", &[experts, inner]),
        (7, "up_bias", &[experts, inner]),
        (8, "down_bias", &[experts, hidden]),
    ];
    for (index, name, shape) in expected {
        let found = call.optional(index);
        if let Some(found) = found.filter(|w| w.fixed_shape().as_deref() != Some(shape)) {
            return Err(OpError::new(format!("expects `{name}` {shape:?}, found {}", show(&found.shape))));
        }
    }
    Ok(experts)
}
