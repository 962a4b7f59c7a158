//! States, KV writes, attention.

use super::{attr, input, optional};
use crate::dim::{Dim, show};
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[
    OpSchema {
        name: "state/1",
        summary: "Declares state of a sequence that the core owns; the same name in several entries is one state. Kinds: kv and cross (num_heads, k_dim, v_dim, window, v_is_k_prefix), recurrent (shape, f32, zero at the start), conv (shape [channels, columns], zero at the start), tokens (shape [count], the most recent token ids, −1 at the start).",
        formula: "",
        inputs: &[],
        variadic: false,
        attrs: &[
            attr("name", AttrKind::Str, Default::Required, "stable, unique: layers.3.self"),
            attr("kind", AttrKind::Str, Default::Required, "kv, cross, recurrent, conv or tokens"),
            attr("num_heads", AttrKind::Int, Default::Int(0), "KV heads"),
            attr("k_dim", AttrKind::Int, Default::Int(0), "width of a key head"),
            attr("v_dim", AttrKind::Int, Default::Int(0), "width of a value head"),
            attr(
                "v_is_k_prefix",
                AttrKind::Bool,
                Default::Bool(false),
                "values are the first v_dim of the keys",
            ),
            attr("window", AttrKind::Int, Default::Absent, "most recent tokens that are ever read"),
            attr("shape", AttrKind::Ints, Default::Absent, "of a recurrent, conv or tokens state"),
        ],
        effect: Effect::Declares,
        infer: infer_state,
    },
    OpSchema {
        name: "kv_write/1",
        summary: "Appends the rows' keys and values; the result is the state after the write.",
        formula: "",
        inputs: &[
            input("state", "kv or cross"),
            input("k", "[T, num_heads, k_dim]"),
            optional("v", "[T, num_heads, v_dim]"),
        ],
        variadic: false,
        attrs: &[],
        effect: Effect::WritesState,
        infer: infer_kv_write,
    },
    OpSchema {
        name: "attention/1",
        summary: "Attention over a state, or over the rows' own k and v within each sequence. Query head h reads KV head h / (heads / num_heads). A causal row at position i sees positions j ≤ i; with a window, i − j < window.",
        formula: "y = softmax(scale · q·kᵀ, masked) · v, in f32; softcap applies to scaled scores; sinks add one logit per head without a value",
        inputs: &[
            input("q", "[T, heads, k_dim]"),
            optional("state", "kv or cross"),
            optional("k", "[T, num_heads, k_dim], without a state"),
            optional("v", "[T, num_heads, v_dim], without a state"),
            optional(
                "select",
                "[T, n] or [T, num_heads, n], from indexer_topk/1: only these positions are seen, within the mask; −1 stands for none",
            ),
            optional("sinks", "[heads]"),
        ],
        variadic: false,
        attrs: &[
            attr("scale", AttrKind::Float, Default::Required, "multiplies the scores"),
            attr("mask", AttrKind::Str, Default::Str("causal"), "causal or full"),
            attr("window", AttrKind::Int, Default::Absent, "sliding window"),
            attr("softcap", AttrKind::Float, Default::Absent, "cap·tanh(score/cap)"),
            attr("select_block", AttrKind::Int, Default::Int(1), "select counts blocks of so many positions"),
        ],
        effect: Effect::ReadsState,
        infer: infer_attention,
    },
];

fn infer_state(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let kind = call.attrs.str("kind").unwrap_or("");
    let dims: Vec<usize> = match kind {
        "kv" | "cross" => vec![call.size("num_heads")?, call.size("k_dim")?, call.size("v_dim")?],
        "recurrent" => call.sizes("shape")?,
        "conv" if call.sizes("shape")?.len() == 2 => call.sizes("shape")?,
        "conv" => return Err(OpError::new("of kind conv needs the shape [channels, columns]")),
        "tokens" if call.sizes("shape")?.len() == 1 => call.sizes("shape")?,
        "tokens" => return Err(OpError::new("of kind tokens needs the shape [count]")),
        _ => {
            return Err(OpError::new(format!(
                "has no kind `{kind}`; expected kv, cross, recurrent, conv or tokens"
            )));
        }
    };
    if dims.is_empty() || dims.contains(&0) {
        return Err(OpError::new(format!("of kind {kind} cannot have the dimensions {dims:?}")));
    }
    if call.attrs.str("name").is_none_or(str::is_empty) {
        return Err(OpError::new("needs a name"));
    }
    let shape = dims.into_iter().map(Dim::fixed).collect();
    Ok(vec![ValueInfo { kind: ValueKind::State(call.next_state), shape, sharding: Sharding::Replicated }])
}

/// A state input as `(num_heads, k_dim, v_dim)`.
pub(super) fn kv_state<'a>(call: &Call<'a>, index: usize) -> Result<(&'a ValueInfo, [usize; 3]), OpError> {
    let state = call.input(index)?;
    let dims = state.fixed_shape().and_then(|s| <[usize; 3]>::try_from(s).ok());
    match (state.kind, dims) {
        (ValueKind::State(_), Some(dims)) => Ok((state, dims)),
        _ => Err(OpError::new("needs a state of kind kv or cross")),
    }
}

fn expect_heads(what: &str, v: &ValueInfo, heads: usize, dim: usize) -> Result<(), OpError> {
    let found = v.shape.get(1..).map(|d| d.iter().map(|d| d.size()).collect::<Vec<_>>());
    if found == Some(vec![Some(heads), Some(dim)]) {
        Ok(())
    } else {
        Err(OpError::new(format!("expects {what} [T, {heads}, {dim}], found {}", show(&v.shape))))
    }
}

fn infer_kv_write(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let (state, [heads, k_dim, v_dim]) = kv_state(call, 0)?;
    let k = call.typed(1, "k", ValueKind::Float)?;
    expect_heads("keys", k, heads, k_dim)?;
    if let Some(v) = call.optional(2) {
        expect_heads("values", v, heads, v_dim)?;
    }
    Ok(vec![ValueInfo { sharding: k.sharding.settled(), ..state.clone() }])
}

fn infer_attention(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let q = call.typed(0, "q", ValueKind::Float)?;
    let (kv_heads, k_dim, v_dim) = if call.optional(1).is_some() {
        let (_, [heads, k, v]) = kv_state(call, 1)?;
        (heads, k, v)
    } else {
        let (k, v) = (call.typed(2, "k", ValueKind::Float)?, call.typed(3, "v", ValueKind::Float)?);
        let size = |x: &ValueInfo, axis: usize| x.shape.get(axis).and_then(|d| d.size()).unwrap_or(0);
        (size(k, 1), size(k, 2), size(v, 2))
    };
    let heads = q.shape.get(1).and_then(|d| d.size()).unwrap_or(0);
    if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(OpError::new(format!(
            "has queries {} over {kv_heads} KV heads: not a multiple",
            show(&q.shape)
        )));
    }
    expect_heads("queries", q, heads, k_dim)?;
    if let Some(sinks) = call.optional(5)
        && sinks.fixed_shape() != Some(vec![heads])
    {
        return Err(OpError::new(format!("has {heads} heads and sinks {}", show(&sinks.shape))));
    }
    if call.optional(4).is_some() {
        let select = call.typed(4, "select", ValueKind::Int)?;
        let per_head = select.shape.get(1).and_then(|d| d.size()) == Some(kv_heads);
        if !(select.shape.len() == 2 || select.shape.len() == 3 && per_head)
            || call.size("select_block")? == 0
        {
            return Err(OpError::new(format!(
                "over {kv_heads} KV heads expects select [T, n] or [T, {kv_heads}, n] in blocks of at least 1, found {}",
                show(&select.shape)
            )));
        }
    }
    call.choice("mask", &["causal", "full"])?;
    let mut shape = q.shape.clone();
    shape[2] = Dim::fixed(v_dim);
    Ok(float(shape, q.sharding.settled()))
}
