//! Weights and the expressions over them that are computed once, at load.
//!
//! Moves that keep the last axis whole (stack, slice, reshape, permute of rows) keep quantised blocks as they are.

use super::{attr, input};
use crate::dim::Dim;
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema};

const ROLES: [&str; 6] = ["column", "row", "vocab", "expert", "replicated", "router"];

pub(super) const OPS: &[OpSchema] = &[
    OpSchema {
        name: "weight/1",
        summary: "A checkpoint tensor by its first name that exists. The first name is the canonical module path.",
        formula: "",
        inputs: &[],
        variadic: false,
        attrs: &[
            attr("names", AttrKind::Strs, Default::Required, "names to try, in order"),
            attr("shape", AttrKind::Ints, Default::Required, "logical shape, [out, in] for a matrix"),
            attr(
                "role",
                AttrKind::Str,
                Default::Str("replicated"),
                "column, row, vocab, expert, replicated or router",
            ),
        ],
        effect: Effect::LoadTime,
        infer: infer_weight,
    },
    OpSchema {
        name: "weight.experts/1",
        summary: "One tensor per expert, stacked on a new axis 0.",
        formula: "w[e] = tensor named with {e} = e",
        inputs: &[],
        variadic: false,
        attrs: &[
            attr(
                "names",
                AttrKind::Strs,
                Default::Required,
                "names to try, with {e} for the expert's number",
            ),
            attr("experts", AttrKind::Int, Default::Required, "number of experts"),
            attr("shape", AttrKind::Ints, Default::Required, "shape of one expert's tensor"),
        ],
        effect: Effect::LoadTime,
        infer: infer_experts,
    },
    OpSchema {
        name: "weight.first_of/1",
        summary: "The first alternative whose tensors all exist; the first without a checkpoint.",
        formula: "",
        inputs: &[input("w", "alternatives of one shape")],
        variadic: true,
        attrs: &[],
        effect: Effect::LoadTime,
        infer: infer_first_of,
    },
    OpSchema {
        name: "weight.stack/1",
        summary: "Joins along an existing axis.",
        formula: "",
        inputs: &[input("w", "parts, equal but for the axis")],
        variadic: true,
        attrs: &[attr("axis", AttrKind::Int, Default::Int(0), "which axis")],
        effect: Effect::LoadTime,
        infer: infer_stack,
    },
    OpSchema {
        name: "weight.slice/1",
        summary: "Part of one axis.",
        formula: "",
        inputs: &[input("w", "")],
        variadic: false,
        attrs: &[
            attr("axis", AttrKind::Int, Default::Int(0), "which axis"),
            attr("start", AttrKind::Int, Default::Required, "first index"),
            attr("end", AttrKind::Int, Default::Required, "index after the last"),
        ],
        effect: Effect::LoadTime,
        infer: infer_slice,
    },
    OpSchema {
        name: "weight.reshape/1",
        summary: "The same elements in row-major order under another shape.",
        formula: "",
        inputs: &[input("w", "")],
        variadic: false,
        attrs: &[attr("shape", AttrKind::Ints, Default::Required, "the new shape")],
        effect: Effect::LoadTime,
        infer: infer_reshape,
    },
    OpSchema {
        name: "weight.permute/1",
        summary: "Axes reordered: axis i of the result is axis axes[i] of the input.",
        formula: "",
        inputs: &[input("w", "")],
        variadic: false,
        attrs: &[attr("axes", AttrKind::Ints, Default::Required, "a permutation")],
        effect: Effect::LoadTime,
        infer: infer_permute,
    },
    OpSchema {
        name: "weight.affine/1",
        summary: "Elementwise, in f32.",
        formula: "factor · w + shift",
        inputs: &[input("w", "")],
        variadic: false,
        attrs: &[
            attr("factor", AttrKind::Float, Default::Float(1.0), ""),
            attr("shift", AttrKind::Float, Default::Float(0.0), ""),
        ],
        effect: Effect::LoadTime,
        infer: same,
    },
    OpSchema {
        name: "weight.neg_exp/1",
        summary: "Elementwise, in f32.",
        formula: "−exp(w)",
        inputs: &[input("w", "")],
        variadic: false,
        attrs: &[],
        effect: Effect::LoadTime,
        infer: same,
    },
    OpSchema {
        name: "weight.log_neg/1",
        summary: "Elementwise, in f32.",
        formula: "ln(−w)",
        inputs: &[input("w", "")],
        variadic: false,
        attrs: &[],
        effect: Effect::LoadTime,
        infer: same,
    },
];

fn weight(shape: &[usize], sharding: Sharding) -> Vec<ValueInfo> {
    vec![ValueInfo {
        kind: ValueKind::Weight,
        shape: shape.iter().map(|&n| Dim::fixed(n)).collect(),
        sharding,
    }]
}

fn shape_attr(call: &Call<'_>) -> Result<Vec<usize>, OpError> {
    let shape = call.sizes("shape")?;
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    if shape.is_empty() || shape.contains(&0) || elements.is_none_or(|n| n > 1 << 48) {
        return Err(OpError::new(format!("cannot have the shape {shape:?}")));
    }
    Ok(shape)
}

fn names_attr<'a>(call: &'a Call<'_>) -> Result<&'a [String], OpError> {
    match call.attrs.strs("names") {
        Some(names) if !names.is_empty() => Ok(names),
        _ => Err(OpError::new("needs at least one name")),
    }
}

fn infer_weight(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    names_attr(call)?;
    let shape = shape_attr(call)?;
    let role = call.attrs.str("role").unwrap_or("");
    let sharding = match role {
        "column" | "vocab" | "expert" => Sharding::Axis(0),
        "row" if shape.len() > 1 => Sharding::Axis(shape.len() - 1),
        _ if ROLES.contains(&role) => Sharding::Replicated,
        _ => return Err(OpError::new(format!("has no role `{role}`; expected one of {}", ROLES.join(", ")))),
    };
    Ok(weight(&shape, sharding))
}

fn infer_experts(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    for name in names_attr(call)? {
        if !name.contains("{e}") {
            return Err(OpError::new(format!("the name `{name}` has no {{e}} for the expert's number")));
        }
    }
    let experts = call.size("experts")?;
    if experts == 0 || experts > 1 << 20 {
        return Err(OpError::new(format!("cannot stack {experts} experts")));
    }
    let shape = [&[experts], shape_attr(call)?.as_slice()].concat();
    Ok(weight(&shape, Sharding::Axis(0)))
}

fn fixed<'a>(call: &Call<'a>, index: usize) -> Result<(Vec<usize>, &'a ValueInfo), OpError> {
    let info = call.typed(index, "w", ValueKind::Weight)?;
    let shape = info.fixed_shape().ok_or_else(|| OpError::new("needs a fixed shape"))?;
    Ok((shape, info))
}

fn same(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    fixed(call, 0).map(|(_, info)| vec![info.clone()])
}

fn infer_first_of(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let (shape, info) = fixed(call, 0)?;
    for i in 1..call.inputs.len() {
        let (other, _) = fixed(call, i)?;
        if other != shape {
            return Err(OpError::new(format!("has alternatives of shapes {shape:?} and {other:?}")));
        }
    }
    Ok(vec![info.clone()])
}

fn axis_attr(call: &Call<'_>, rank: usize) -> Result<usize, OpError> {
    let axis = call.size("axis")?;
    if axis < rank { Ok(axis) } else { Err(OpError::new(format!("axis {axis} of a value with {rank} axes"))) }
}

fn infer_stack(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let (mut shape, info) = fixed(call, 0)?;
    let axis = axis_attr(call, shape.len())?;
    for i in 1..call.inputs.len() {
        let (other, _) = fixed(call, i)?;
        let fits = other.len() == shape.len() && (0..shape.len()).all(|a| a == axis || other[a] == shape[a]);
        if !fits {
            return Err(OpError::new(format!("cannot join {shape:?} and {other:?} along axis {axis}")));
        }
        shape[axis] += other[axis];
    }
    Ok(weight(&shape, info.sharding))
}

fn infer_slice(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let (mut shape, info) = fixed(call, 0)?;
    let axis = axis_attr(call, shape.len())?;
    let (start, end) = (call.size("start")?, call.size("end")?);
    if start >= end || end > shape[axis] {
        return Err(OpError::new(format!("cannot take {start}..{end} of axis {axis} of {shape:?}")));
    }
    shape[axis] = end - start;
    Ok(weight(&shape, info.sharding))
}

fn infer_reshape(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let (old, info) = fixed(call, 0)?;
    let new = shape_attr(call)?;
    if old.iter().product::<usize>() != new.iter().product::<usize>() {
        return Err(OpError::new(format!("cannot view {old:?} as {new:?}: the number of elements differs")));
    }
    let sharding = match info.sharding {
        Sharding::Axis(a) if a + 1 == old.len() && old.last() == new.last() => Sharding::Axis(new.len() - 1),
        other => other,
    };
    Ok(weight(&new, sharding))
}

fn infer_permute(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let (old, info) = fixed(call, 0)?;
    let axes = call.sizes("axes")?;
    check_permutation(&axes, old.len())?;
    let shape: Vec<_> = axes.iter().map(|&a| old[a]).collect();
    Ok(weight(&shape, permuted_sharding(info.sharding, &axes)))
}

/// Every axis exactly once.
pub(super) fn check_permutation(axes: &[usize], rank: usize) -> Result<(), OpError> {
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(0..rank) {
        Ok(())
    } else {
        Err(OpError::new(format!("{axes:?} is not a permutation of {rank} axes")))
    }
}

/// Where a sharded axis goes under a permutation.
pub(super) fn permuted_sharding(sharding: Sharding, axes: &[usize]) -> Sharding {
    match sharding {
        Sharding::Axis(a) => axes.iter().position(|&x| x == a).map_or(sharding, Sharding::Axis),
        other => other,
    }
}
