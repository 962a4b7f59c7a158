//! Ops that carry state from token to token. Rows of one sequence are processed in order.

use super::{attr, input};
use crate::dim::{Dim, show};
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[
    OpSchema {
        name: "causal_conv1d/1",
        summary: "Depthwise convolution along each sequence. The state keeps the last (K − 1)·dilation inputs, not outputs.",
        formula: "y[t, c] = act(Σᵢ w[c, i] · x[t − (K − 1 − i)·dilation, c]), i = 0 … K − 1",
        inputs: &[input("x", "[T, C]"), input("w", "[C, K]"), input("state", "conv [C, (K − 1)·dilation]")],
        variadic: false,
        attrs: &[
            attr("activation", AttrKind::Str, Default::Str("none"), "none or silu"),
            attr("dilation", AttrKind::Int, Default::Int(1), "distance between the inputs of one output"),
        ],
        effect: Effect::WritesState,
        infer: infer_conv,
    },
    OpSchema {
        name: "gated_delta_rule/1",
        summary: "Gated delta net. Value head h uses key head h / (Hv / Hk).",
        formula: "S ← exp(g)·S;  S ← S + k ⊗ β(v − Sᵀk);  o = Sᵀq, in f32",
        inputs: &[
            input("q", "[T, Hk, dk]"),
            input("k", "[T, Hk, dk]"),
            input("v", "[T, Hv, dv]"),
            input("g", "[T, Hv], or [T, Hv, dk] per channel"),
            input("beta", "[T, Hv]"),
            input("state", "recurrent [Hv, dk, dv]"),
        ],
        variadic: false,
        attrs: &[],
        effect: Effect::WritesState,
        infer: infer_delta_rule,
    },
    OpSchema {
        name: "ngram_hash/1",
        summary: "Rows of hashed n-gram tables: head h hashes the last orders[h] tokens, the row's own token first. A context never reaches past the reset token: from the first one before the row on, and before the start, every older token counts as reset. Products wrap as i64; mod gives 0 to the modulus.",
        formula: "y[t, h] = (⊕ᵢ token[t − i] · multipliers[i]) mod moduli[h] + offsets[h], i = 0 … orders[h] − 1",
        inputs: &[input("ids", "[T]"), input("state", "tokens [longest order − 1]")],
        variadic: false,
        attrs: &[
            attr("orders", AttrKind::Ints, Default::Required, "n-gram length of each head"),
            attr("multipliers", AttrKind::Ints, Default::Required, "one per token of the longest n-gram"),
            attr("moduli", AttrKind::Ints, Default::Required, "table rows of each head"),
            attr("offsets", AttrKind::Ints, Default::Required, "first table row of each head"),
            attr("reset", AttrKind::Int, Default::Required, "token id that ends a context"),
        ],
        effect: Effect::WritesState,
        infer: infer_ngram_hash,
    },
];

fn state_shape(call: &Call<'_>, index: usize) -> Result<Vec<usize>, OpError> {
    let state = call.input(index)?;
    match (state.kind, state.fixed_shape()) {
        (ValueKind::State(_), Some(shape)) => Ok(shape),
        _ => Err(OpError::new("needs a state")),
    }
}

fn infer_conv(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let w = call.typed(1, "w", ValueKind::Weight)?;
    let state = state_shape(call, 2)?;
    let dilation = call.size("dilation")?;
    let shape = w.fixed_shape().and_then(|s| <[usize; 2]>::try_from(s).ok());
    match shape {
        Some([channels, width])
            if x.shape.len() == 2
                && x.width() == Some(channels)
                && dilation > 0
                && state == [channels, (width - 1) * dilation] => {}
        _ => {
            return Err(OpError::new(format!(
                "has x {}, w {} and a state {state:?}; expected [T, C], [C, K] and [C, (K − 1)·{dilation}]",
                show(&x.shape),
                show(&w.shape)
            )));
        }
    }
    call.choice("activation", &["none", "silu"])?;
    Ok(float(x.shape.clone(), x.sharding.settled()))
}

fn infer_delta_rule(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let names = ["q", "k", "v", "g", "beta"];
    let mut rows = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let x = call.typed(i, name, ValueKind::Float)?;
        let dims: Option<Vec<usize>> = x.shape[1..].iter().map(|d| d.size()).collect();
        rows.push(dims.ok_or_else(|| {
            OpError::new(format!("`{name}` must have fixed rows, found {}", show(&x.shape)))
        })?);
    }
    let state = state_shape(call, 5)?;
    let ok = match (rows[0].as_slice(), rows[2].as_slice()) {
        (&[hk, dk], &[hv, dv]) => {
            rows[1] == rows[0]
                && hv.is_multiple_of(hk)
                && (rows[3] == [hv] || rows[3] == [hv, dk])
                && rows[4] == [hv]
                && state == [hv, dk, dv]
        }
        _ => false,
    };
    if !ok {
        return Err(OpError::new(format!(
            "has rows q {:?}, k {:?}, v {:?}, g {:?}, beta {:?} and a state {state:?}; expected [Hk, dk] twice, [Hv, dv], [Hv] or [Hv, dk], [Hv] and [Hv, dk, dv]",
            rows[0], rows[1], rows[2], rows[3], rows[4]
        )));
    }
    let v = call.input(2)?;
    Ok(float(v.shape.clone(), v.sharding.settled()))
}

fn infer_ngram_hash(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let ids = call.typed(0, "ids", ValueKind::Int)?;
    let state = state_shape(call, 1)?;
    let (orders, moduli) = (call.sizes("orders")?, call.sizes("moduli")?);
    let (offsets, longest) = (call.sizes("offsets")?, orders.iter().copied().max().unwrap_or(0));
    let multipliers = call.attrs.ints("multipliers").map_or(0, <[i64]>::len);
    let heads = orders.len();
    let fits = ids.shape.len() == 1
        && longest >= 2
        && !orders.contains(&0)
        && !moduli.contains(&0)
        && [moduli.len(), offsets.len()] == [heads; 2]
        && multipliers == longest
        && state == [longest - 1];
    if !fits {
        return Err(OpError::new(format!(
            "has {heads} orders up to {longest}, {multipliers} multipliers, {} moduli, {} offsets and a state {state:?}; expected \
             one modulus and offset per order, one multiplier per token and a state of one token less",
            moduli.len(),
            offsets.len()
        )));
    }
    let shape = vec![ids.shape[0], Dim::fixed(heads)];
    Ok(vec![ValueInfo { kind: ValueKind::Int, shape, sharding: Sharding::Replicated }])
}
