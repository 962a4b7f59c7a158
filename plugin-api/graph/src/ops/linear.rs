//! Matrix products with weights, and table lookup.

use super::{input, optional};
use crate::dim::{Dim, show};
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{Call, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[
    OpSchema {
        name: "linear/1",
        summary: "Product with a weight matrix.",
        formula: "y[…, n] = Σₖ x[…, k] · w[n, k] + b[n]",
        inputs: &[input("x", "[…, K]"), input("w", "[N, K]"), optional("b", "[N]")],
        variadic: false,
        attrs: &[],
        effect: Effect::Pure,
        infer: infer_linear,
    },
    OpSchema {
        name: "head_linear/1",
        summary: "Every head's product with a matrix of its own (the absorbed projections of latent attention).",
        formula: "y[t, h, n] = Σₖ x[t, h, k] · w[h, n, k]",
        inputs: &[input("x", "[T, heads, K]"), input("w", "[heads, N, K]")],
        variadic: false,
        attrs: &[],
        effect: Effect::Pure,
        infer: infer_head_linear,
    },
    OpSchema {
        name: "embedding/1",
        summary: "Rows of a table.",
        formula: "y[…] = w[ids[…]]",
        inputs: &[input("ids", "[T], or [rows, n]"), input("w", "[V, H]")],
        variadic: false,
        attrs: &[],
        effect: Effect::Pure,
        infer: infer_embedding,
    },
];

fn infer_linear(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let w = call.typed(1, "w", ValueKind::Weight)?;
    let [n, k] = w
        .fixed_shape()
        .and_then(|s| <[usize; 2]>::try_from(s).ok())
        .ok_or_else(|| OpError::new(format!("needs a weight [out, in], found {}", show(&w.shape))))?;
    if x.width() != Some(k) {
        return Err(OpError::new(format!(
            "multiplies {} with a weight [{n}, {k}]: {k} inputs expected",
            show(&x.shape)
        ))
        .help("a weight is [out, in]: its last dimension is the input's last"));
    }
    if let Some(b) = call.optional(2)
        && b.fixed_shape() != Some(vec![n])
    {
        return Err(OpError::new(format!("has {n} outputs and a bias {}", show(&b.shape))));
    }
    let last = x.shape.len() - 1;
    let sharding = match (x.sharding.settled(), w.sharding) {
        (Sharding::Axis(a), Sharding::Axis(1)) if a == last => Sharding::Partial,
        (Sharding::Axis(a), _) if a == last => {
            return Err(OpError::new(
                "has an input that is sharded over its features and a weight that is not cut by them",
            )
            .help("give the weight the role Row"));
        }
        (Sharding::Axis(a), Sharding::Replicated) => Sharding::Axis(a),
        (_, Sharding::Axis(0)) => Sharding::Axis(last),
        (_, Sharding::Axis(_)) => Sharding::Partial,
        _ => Sharding::Replicated,
    };
    let mut shape = x.shape.clone();
    shape[last] = Dim::fixed(n);
    Ok(float(shape, sharding))
}

fn infer_head_linear(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let w = call.typed(1, "w", ValueKind::Weight)?;
    let row: Option<Vec<usize>> = x.shape.iter().skip(1).map(|d| d.size()).collect();
    match (row.as_deref(), w.fixed_shape().as_deref()) {
        (Some(&[heads, k]), Some(&[w_heads, n, w_k])) if heads == w_heads && k == w_k => {
            let shape = vec![x.shape[0], Dim::fixed(heads), Dim::fixed(n)];
            Ok(float(shape, x.sharding.settled()))
        }
        _ => Err(OpError::new(format!(
            "has x {} and w {}; expected [T, heads, K] and [heads, N, K]",
            show(&x.shape),
            show(&w.shape)
        ))),
    }
}

fn infer_embedding(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let ids = call.typed(0, "ids", ValueKind::Int)?;
    let w = call.typed(1, "w", ValueKind::Weight)?;
    let [_, width] = w
        .fixed_shape()
        .and_then(|s| <[usize; 2]>::try_from(s).ok())
        .ok_or_else(|| OpError::new(format!("needs a table [rows, width], found {}", show(&w.shape))))?;
    let mut shape = ids.shape.clone();
    shape.push(Dim::fixed(width));
    let sharding = if w.sharding == Sharding::Axis(0) { Sharding::Partial } else { Sharding::Replicated };
    Ok(float(shape, sharding))
}
