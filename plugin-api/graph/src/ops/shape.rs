//! Views and rearrangements. Axis 0, the rows, stays where it is.

use super::weights::{check_permutation, permuted_sharding};
use super::{attr, input};
use crate::dim::{Dim, show};
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[
    OpSchema {
        name: "reshape/1",
        summary: "Gives each row another shape.",
        formula: "",
        inputs: &[input("x", "[T, …]")],
        variadic: false,
        attrs: &[attr("dims", AttrKind::Ints, Default::Required, "shape of a row")],
        effect: Effect::Pure,
        infer: infer_reshape,
    },
    OpSchema {
        name: "flatten/1",
        summary: "Makes each row one vector.",
        formula: "",
        inputs: &[input("x", "[T, …]")],
        variadic: false,
        attrs: &[],
        effect: Effect::Pure,
        infer: infer_flatten,
    },
    OpSchema {
        name: "split/1",
        summary: "Cuts one axis into consecutive pieces; one output each.",
        formula: "",
        inputs: &[input("x", "")],
        variadic: false,
        attrs: &[
            attr("axis", AttrKind::Int, Default::Required, "which axis; never the rows"),
            attr("sizes", AttrKind::Ints, Default::Required, "sizes of the pieces; they add up to the axis"),
        ],
        effect: Effect::Pure,
        infer: infer_split,
    },
    OpSchema {
        name: "concat/1",
        summary: "Joins along one axis.",
        formula: "",
        inputs: &[input("x", "equal but for the axis")],
        variadic: true,
        attrs: &[attr("axis", AttrKind::Int, Default::Required, "which axis; never the rows")],
        effect: Effect::Pure,
        infer: infer_concat,
    },
    OpSchema {
        name: "repeat/1",
        summary: "Repeats each entry of one axis.",
        formula: "y[…, i, …] = x[…, i / times, …]",
        inputs: &[input("x", "")],
        variadic: false,
        attrs: &[
            attr("axis", AttrKind::Int, Default::Required, "which axis; never the rows"),
            attr("times", AttrKind::Int, Default::Required, "how often"),
        ],
        effect: Effect::Pure,
        infer: infer_repeat,
    },
    OpSchema {
        name: "permute/1",
        summary: "Axes of each row reordered: axis i of the result is axis axes[i] of x; axes[0] is 0.",
        formula: "",
        inputs: &[input("x", "")],
        variadic: false,
        attrs: &[attr("axes", AttrKind::Ints, Default::Required, "a permutation that keeps 0 first")],
        effect: Effect::Pure,
        infer: infer_permute,
    },
];

/// The sizes of a row's axes.
fn row(x: &ValueInfo) -> Result<Vec<usize>, OpError> {
    x.shape
        .get(1..)
        .and_then(|dims| dims.iter().map(|d| d.size()).collect())
        .ok_or_else(|| OpError::new(format!("works on [rows, fixed…], found {}", show(&x.shape))))
}

fn rows_and(x: &ValueInfo, dims: &[usize]) -> Vec<Dim> {
    std::iter::once(x.shape[0]).chain(dims.iter().map(|&n| Dim::fixed(n))).collect()
}

fn infer_reshape(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let (old, new) = (row(x)?, call.sizes("dims")?);
    if new.is_empty() || old.iter().product::<usize>() != new.iter().product::<usize>() {
        return Err(OpError::new(format!("cannot view a row of {old:?} as {new:?}")));
    }
    let sharding = match x.sharding.settled() {
        Sharding::Axis(a) if a >= 1 => Sharding::Axis(1),
        other => other,
    };
    Ok(float(rows_and(x, &new), sharding))
}

fn infer_flatten(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let width = row(x)?.iter().product();
    let sharding = match x.sharding.settled() {
        Sharding::Axis(a) if a > 1 => {
            return Err(OpError::new(format!("cannot flatten a value that is sharded over axis {a}")));
        }
        other => other,
    };
    Ok(float(rows_and(x, &[width]), sharding))
}

fn axis_of_row(call: &Call<'_>, x: &ValueInfo) -> Result<usize, OpError> {
    let axis = call.size("axis")?;
    if (1..x.shape.len()).contains(&axis) {
        Ok(axis)
    } else {
        Err(OpError::new(format!(
            "axis {axis} of {}: expected 1 to {}",
            show(&x.shape),
            x.shape.len().saturating_sub(1)
        )))
    }
}

fn infer_split(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let axis = axis_of_row(call, x)?;
    let (dims, sizes) = (row(x)?, call.sizes("sizes")?);
    if sizes.iter().sum::<usize>() != dims[axis - 1] || sizes.len() != call.num_outputs || sizes.contains(&0)
    {
        return Err(OpError::new(format!("cannot cut axis {axis} of {} into {sizes:?}", show(&x.shape))));
    }
    let piece = |&size: &usize| {
        let mut dims = dims.clone();
        dims[axis - 1] = size;
        ValueInfo { kind: ValueKind::Float, shape: rows_and(x, &dims), sharding: x.sharding.settled() }
    };
    Ok(sizes.iter().map(piece).collect())
}

fn infer_concat(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let first = call.typed(0, "x", ValueKind::Float)?;
    let axis = axis_of_row(call, first)?;
    let mut dims = row(first)?;
    for i in 1..call.inputs.len() {
        let other = call.typed(i, "x", ValueKind::Float)?;
        let theirs = row(other)?;
        let fits = other.shape[0] == first.shape[0]
            && theirs.len() == dims.len()
            && (0..dims.len()).all(|a| a + 1 == axis || theirs[a] == dims[a]);
        if !fits {
            return Err(OpError::new(format!(
                "cannot join {} and {} along axis {axis}",
                show(&first.shape),
                show(&other.shape)
            )));
        }
        dims[axis - 1] += theirs[axis - 1];
    }
    Ok(float(rows_and(first, &dims), first.sharding.settled()))
}

fn infer_repeat(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let axis = axis_of_row(call, x)?;
    let times = call.size("times")?;
    if times == 0 {
        return Err(OpError::new("cannot repeat 0 times"));
    }
    let mut dims = row(x)?;
    dims[axis - 1] *= times;
    Ok(float(rows_and(x, &dims), x.sharding.settled()))
}

fn infer_permute(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let axes = call.sizes("axes")?;
    check_permutation(&axes, x.shape.len())?;
    if axes[0] != 0 {
        return Err(OpError::new("must keep the rows first: axes[0] is 0"));
    }
    let shape = axes.iter().map(|&a| x.shape[a]).collect();
    Ok(float(shape, permuted_sharding(x.sharding.settled(), &axes)))
}
