//! Mixture of experts.

use super::{attr, input, optional};
use crate::dim::show;
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[OpSchema {
    name: "moe/1",
    summary: "A weighted sum over the experts that a router chose. Router softmax: p over all experts, the top_k largest. Router sigmoid: choice by s + bias within the best top_groups of num_groups (a group scores the sum of its two best), weights are s without the bias. renormalize divides by their sum. Ties go to the lower index. Scores are f32.",
    formula: "y = scale · Σₑ weightₑ · down[e]·(silu(gate[e]·x) ∘ up[e]·x)",
    inputs: &[
        input("x", "[T, H]"),
        input("logits", "[T, E]"),
        input("gate", "[E, I, H]"),
        input("up", "[E, I, H]"),
        input("down", "[E, H, I]"),
        optional("bias", "[E], for the choice only"),
    ],
    variadic: false,
    attrs: &[
        attr("router", AttrKind::Str, Default::Required, "softmax or sigmoid"),
        attr("top_k", AttrKind::Int, Default::Required, "experts per token"),
        attr("renormalize", AttrKind::Bool, Default::Bool(true), "weights add up to 1 before scale"),
        attr("scale", AttrKind::Float, Default::Float(1.0), "multiplies the weights"),
        attr("num_groups", AttrKind::Int, Default::Int(1), "groups of experts"),
        attr("top_groups", AttrKind::Int, Default::Int(1), "groups that may be chosen from"),
    ],
    effect: Effect::Pure,
    infer: infer_moe,
}];

fn infer_moe(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let logits = call.typed(1, "logits", ValueKind::Float)?;
    let weight = |i: usize, name: &str| -> Result<[usize; 3], OpError> {
        let w = call.typed(i, name, ValueKind::Weight)?;
        w.fixed_shape()
            .and_then(|s| s.try_into().ok())
            .ok_or_else(|| OpError::new(format!("`{name}` must have three axes, found {}", show(&w.shape))))
    };
    let (gate, up, down) = (weight(2, "gate")?, weight(3, "up")?, weight(4, "down")?);
    let [experts, inner, hidden] = gate;
    let fits = up == gate
        && down == [experts, hidden, inner]
        && x.width() == Some(hidden)
        && logits.width() == Some(experts);
    if !fits {
        return Err(OpError::new(format!(
            "has x {}, logits {}, gate {gate:?}, up {up:?}, down {down:?}; expected [T, H], [T, E], [E, I, H] twice, [E, H, I]",
            show(&x.shape),
            show(&logits.shape)
        )));
    }
    if let Some(bias) = call.optional(5)
        && bias.fixed_shape() != Some(vec![experts])
    {
        return Err(OpError::new(format!("has {experts} experts and a bias {}", show(&bias.shape))));
    }
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
    if !["softmax", "sigmoid"].contains(&call.attrs.str("router").unwrap_or("")) {
        return Err(OpError::new("has the routers softmax and sigmoid"));
    }
    Ok(float(x.shape.clone(), Sharding::Partial))
}
