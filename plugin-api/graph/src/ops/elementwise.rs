//! Elementwise ops. Two operands broadcast from the right, as in numpy.

use super::{attr, input};
use crate::dim::{Dim, Shape, show};
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, AttrSpec, Call, Default, Effect, Input, OpError, OpSchema, float};

const X: &[Input] = &[input("x", "any activation")];
const AB: &[Input] = &[input("a", "an activation"), input("b", "an activation or weight that broadcasts")];

const fn unary(name: &'static str, formula: &'static str) -> OpSchema {
    with_attrs(name, formula, &[])
}

const fn with_attrs(name: &'static str, formula: &'static str, attrs: &'static [AttrSpec]) -> OpSchema {
    let summary = "Elementwise.";
    OpSchema {
        name,
        summary,
        formula,
        inputs: X,
        variadic: false,
        attrs,
        effect: Effect::Pure,
        infer: infer_unary,
    }
}

const fn binary(name: &'static str, formula: &'static str) -> OpSchema {
    let summary = "Elementwise, broadcasting from the right.";
    OpSchema {
        name,
        summary,
        formula,
        inputs: AB,
        variadic: false,
        attrs: &[],
        effect: Effect::Pure,
        infer: infer_binary,
    }
}

const fn reduction(name: &'static str, formula: &'static str) -> OpSchema {
    const AXIS: &[AttrSpec] = &[attr("axis", AttrKind::Int, Default::Required, "which axis; never the rows")];
    let summary = "Reduces one axis, which disappears.";
    OpSchema {
        name,
        summary,
        formula,
        inputs: X,
        variadic: false,
        attrs: AXIS,
        effect: Effect::Pure,
        infer: infer_reduction,
    }
}

pub(super) const OPS: &[OpSchema] = &[
    binary("add/1", "a + b"),
    binary("mul/1", "a · b"),
    binary("div/1", "a / b"),
    with_attrs(
        "affine/1",
        "factor · x + shift",
        &[
            attr("factor", AttrKind::Float, Default::Float(1.0), ""),
            attr("shift", AttrKind::Float, Default::Float(0.0), ""),
        ],
    ),
    with_attrs(
        "clamp/1",
        "min(max(x, min), max)",
        &[
            attr("min", AttrKind::Float, Default::Absent, "lower bound, if any"),
            attr("max", AttrKind::Float, Default::Absent, "upper bound, if any"),
        ],
    ),
    with_attrs("softcap/1", "cap · tanh(x / cap)", &[attr("cap", AttrKind::Float, Default::Required, "")]),
    with_attrs(
        "signed_sqrt/1",
        "sign(x) · √max(|x|, min)",
        &[attr("min", AttrKind::Float, Default::Float(0.0), "smallest magnitude under the root")],
    ),
    OpSchema {
        name: "sinkhorn/1",
        summary: "Brings square matrices (the last two axes) near doubly stochastic form: softmax over the last axis plus eps, columns normalised, then rows and columns in turn.",
        formula: "m = softmax(x) + eps;  m[·, j] /= Σᵢ m[i, j] + eps;  iterations − 1 times: m[i, ·] /= Σⱼ m[i, j] + eps, m[·, j] /= Σᵢ m[i, j] + eps",
        inputs: &[input("x", "[…, n, n]")],
        variadic: false,
        attrs: &[
            attr("iterations", AttrKind::Int, Default::Required, "how often columns are normalised"),
            attr("eps", AttrKind::Float, Default::Required, "added to entries and sums"),
        ],
        effect: Effect::Pure,
        infer: infer_sinkhorn,
    },
    unary("silu/1", "x / (1 + e⁻ˣ)"),
    unary("sigmoid/1", "1 / (1 + e⁻ˣ)"),
    unary("relu/1", "max(x, 0)"),
    unary("tanh/1", "tanh(x)"),
    unary("exp/1", "eˣ"),
    unary("softplus/1", "ln(1 + eˣ)"),
    unary("gelu/1", "x/2 · (1 + erf(x/√2))"),
    unary("gelu_tanh/1", "x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))"),
    unary("softmax/1", "eˣ / Σ eˣ over the last axis"),
    reduction("mean/1", "mean over the axis"),
    reduction("sum/1", "sum over the axis"),
];

fn infer_unary(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    Ok(float(x.shape.clone(), x.sharding.settled()))
}

fn infer_sinkhorn(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    match x.shape.as_slice() {
        [.., rows, columns] if x.shape.len() > 2 && rows == columns && rows.size().is_some() => {
            infer_unary(call)
        }
        _ => Err(OpError::new(format!("works on [T, n, n], found {}", show(&x.shape)))),
    }
}

fn infer_reduction(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let axis = call.size("axis")?;
    if axis == 0 || axis >= x.shape.len() {
        return Err(OpError::new(format!("cannot reduce axis {axis} of {}", show(&x.shape))));
    }
    let mut shape = x.shape.clone();
    shape.remove(axis);
    let sharding = match x.sharding.settled() {
        Sharding::Axis(a) if a == axis => Sharding::Partial,
        Sharding::Axis(a) if a > axis => Sharding::Axis(a - 1),
        other => other,
    };
    Ok(float(shape, sharding))
}

fn infer_binary(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    for (name, v) in [("a", a), ("b", b)] {
        if !matches!(v.kind, ValueKind::Float | ValueKind::Weight) {
            return Err(OpError::new(format!(
                "`{name}` must be an activation or a weight, found {:?}",
                v.kind
            )));
        }
    }
    let shape = broadcast(&a.shape, &b.shape)
        .ok_or_else(|| OpError::new(format!("cannot combine {} and {}", show(&a.shape), show(&b.shape))))?;
    let sharding = combine(shape.len(), a, b)?;
    Ok(float(shape, sharding))
}

fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Shape> {
    let rank = a.len().max(b.len());
    let at = |s: &[Dim], i: usize| (i + s.len()).checked_sub(rank).map_or(Dim::fixed(1), |j| s[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (x, y) if y == Dim::fixed(1) => Some(x),
            (x, y) if x == Dim::fixed(1) => Some(y),
            _ => None,
        })
        .collect()
}

/// A replicated weight may be cut to match; two activations must agree.
fn combine(rank: usize, a: &ValueInfo, b: &ValueInfo) -> Result<Sharding, OpError> {
    let axis_in_result = |v: &ValueInfo| match v.sharding.settled() {
        Sharding::Axis(x) => Some(x + rank - v.shape.len()),
        _ => None,
    };
    let whole_on = |v: &ValueInfo, axis: usize| {
        (axis + v.shape.len()).checked_sub(rank).is_none_or(|i| v.shape[i] == Dim::fixed(1))
            || v.kind == ValueKind::Weight
    };
    match (axis_in_result(a), axis_in_result(b)) {
        (None, None) => Ok(Sharding::Replicated),
        (Some(x), Some(y)) if x == y => Ok(Sharding::Axis(x)),
        (Some(x), None) if whole_on(b, x) => Ok(Sharding::Axis(x)),
        (None, Some(y)) if whole_on(a, y) => Ok(Sharding::Axis(y)),
        _ => Err(OpError::new(format!(
            "combines a value that is {:?} with one that is {:?}",
            a.sharding, b.sharding
        ))),
    }
}
