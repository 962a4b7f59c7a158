//! Choosing the positions that sparse attention reads.

use super::attention::kv_state;
use super::{attr, input, optional};
use crate::dim::{Dim, show};
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema};

pub(super) const OPS: &[OpSchema] = &[OpSchema {
    name: "indexer_topk/1",
    summary: "The best positions, or blocks of `block` positions, for every row at position p, among positions j ≤ p. Pool none: positions by score. Pool mean_keys: blocks that end at p or before, by the score of their mean key (then normed by key_norm and rotated at the block's first position by inv_freq, where given); the block that p has not filled is added as one more entry. Pool max_scores: blocks by their best score; the block of p and the local_blocks − 1 before it come first. Entries are in order of rank; ties go to the lower position; −1 fills what is left. In f32.",
    formula: "score(j) = Σₕ wₕ · act(scale · qₕ·kⱼ), per index head h when per_head",
    inputs: &[
        input("q", "[T, heads, d]"),
        input("state", "kv, one head, k_dim d: the keys, this step's included"),
        optional("w", "[T, heads]; left out: 1"),
        optional("key_norm", "[d], RMS norm of mean keys"),
        optional("inv_freq", "[R/2], rotation of mean keys, half style"),
    ],
    variadic: false,
    attrs: &[
        attr("top_k", AttrKind::Int, Default::Required, "positions or blocks"),
        attr("scale", AttrKind::Float, Default::Float(1.0), "multiplies the products"),
        attr("activation", AttrKind::Str, Default::Str("relu"), "relu or none"),
        attr("per_head", AttrKind::Bool, Default::Bool(false), "one choice per head instead of one for all"),
        attr("block", AttrKind::Int, Default::Int(1), "positions per block"),
        attr("pool", AttrKind::Str, Default::Str("none"), "none, mean_keys or max_scores"),
        attr(
            "local_blocks",
            AttrKind::Int,
            Default::Int(0),
            "blocks up to the row's own that are always chosen",
        ),
        attr("eps", AttrKind::Float, Default::Float(1e-6), "of key_norm"),
        attr("zero_centered", AttrKind::Bool, Default::Bool(false), "key_norm is stored as w − 1"),
    ],
    effect: Effect::ReadsState,
    infer: infer_topk,
}];

fn infer_topk(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let q = call.typed(0, "q", ValueKind::Float)?;
    let (_, [kv_heads, dim, _]) = kv_state(call, 1)?;
    let row: Option<Vec<usize>> = q.shape.iter().skip(1).map(|d| d.size()).collect();
    let heads = match row.as_deref() {
        Some(&[heads, width]) if width == dim && kv_heads == 1 => heads,
        _ => {
            return Err(OpError::new(format!(
                "has q {} and a state of {kv_heads} heads of {dim}; expected [T, heads, {dim}] and one head",
                show(&q.shape)
            )));
        }
    };
    if let Some(w) = call.optional(2)
        && (w.shape.len() != 2 || w.width() != Some(heads))
    {
        return Err(OpError::new(format!("has {heads} heads and weights {}", show(&w.shape))));
    }
    let pool = call.choice("pool", &["none", "mean_keys", "max_scores"])?;
    call.choice("activation", &["relu", "none"])?;
    let (top_k, block, local) = (call.size("top_k")?, call.size("block")?, call.size("local_blocks")?);
    if top_k == 0 || block == 0 || (pool == "none") != (block == 1) || local > top_k {
        return Err(OpError::new(format!(
            "cannot choose {top_k} blocks of {block} with pool {pool} and {local} local ones; pool none goes with blocks of 1"
        )));
    }
    let key_norm = call.optional(3).filter(|w| w.fixed_shape() != Some(vec![dim]));
    let inv_freq = call.optional(4).filter(|f| f.shape.len() != 1 || 2 * f.width().unwrap_or(dim) > dim);
    if let Some(found) = key_norm.or(inv_freq) {
        return Err(OpError::new(format!(
            "has keys of {dim} and a key norm or frequencies {}",
            show(&found.shape)
        )));
    }
    let entries = top_k + usize::from(pool == "mean_keys");
    let per_head = call.attrs.bool("per_head").unwrap_or(false);
    let mut shape = vec![q.shape[0]];
    shape.extend(per_head.then(|| Dim::fixed(heads)));
    shape.push(Dim::fixed(entries));
    Ok(vec![ValueInfo { kind: ValueKind::Int, shape, sharding: Sharding::Replicated }])
}
