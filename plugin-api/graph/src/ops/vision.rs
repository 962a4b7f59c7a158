//! Ops between patches of images and rows of text.

use super::{attr, input};
use crate::dim::{Dim, show};
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[
    OpSchema {
        name: "group_rows/1",
        summary: "Joins every `count` consecutive rows into one.",
        formula: "y[p] = [x[count·p] | … | x[count·p + count − 1]]",
        inputs: &[input("x", "[P, D]")],
        variadic: false,
        attrs: &[attr(
            "count",
            AttrKind::Int,
            Default::Required,
            "rows per group; divides the number of rows",
        )],
        effect: Effect::Pure,
        infer: infer_group_rows,
    },
    OpSchema {
        name: "merge_rows/1",
        summary: "Replaces rows of text by rows of images.",
        formula: "y[t] = rows[index[t]] where index[t] ≥ 0, else x[t]",
        inputs: &[input("x", "[T, H]"), input("rows", "[P, H]"), input("index", "[T]")],
        variadic: false,
        attrs: &[],
        effect: Effect::Pure,
        infer: infer_merge_rows,
    },
];

fn infer_group_rows(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let count = call.size("count")?;
    match (x.shape.as_slice(), x.width()) {
        (&[rows, _], Some(width)) if count > 0 && rows.symbol.is_some() && rows.add == 0 => {
            let rows = Dim { div: rows.div * count, ..rows };
            Ok(float(vec![rows, Dim::fixed(width * count)], Sharding::Replicated))
        }
        _ => Err(OpError::new(format!("cannot join each {count} rows of {}", show(&x.shape)))),
    }
}

fn infer_merge_rows(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let rows = call.typed(1, "rows", ValueKind::Float)?;
    let index = call.typed(2, "index", ValueKind::Int)?;
    let fits = x.shape.len() == 2 && rows.shape.len() == 2 && x.width() == rows.width();
    if !fits || index.shape != x.shape[..1] {
        return Err(OpError::new(format!(
            "has x {}, rows {} and index {}; expected [T, H], [P, H] and [T]",
            show(&x.shape),
            show(&rows.shape),
            show(&index.shape)
        )));
    }
    Ok(float(x.shape.clone(), Sharding::Replicated))
}
