//! Rotary and sinusoidal positions, computed in f32.

use super::{attr, input};
use crate::dim::{Dim, show};
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[
    OpSchema {
        name: "rope/1",
        summary: "Rotates pairs of the first R = 2·len(inv_freq) dimensions of every head; the rest passes through. With sections, each pair takes its position from one of the streams. Interleaved: pair j from stream 1 if j ≡ 1 (mod 3) and j < 3·sections[1], from stream 2 if j ≡ 2 (mod 3) and j < 3·sections[2], else from stream 0. Blocked: the first sections[0] pairs from stream 0, the next sections[1] from stream 1, the rest from stream 2.",
        formula: "angle = position · inv_freq[j];  (x₁, x₂) → f·(x₁ cos − x₂ sin, x₂ cos + x₁ sin), f = attention_factor, pair (j, j + R/2) for half, (2j, 2j + 1) for interleaved",
        inputs: &[
            input("x", "[T, heads, dim], or [P, heads, dim]"),
            input("positions", "one per row, or [3, rows]"),
            input("inv_freq", "[R/2]"),
        ],
        variadic: false,
        attrs: &[
            attr("style", AttrKind::Str, Default::Str("half"), "half or interleaved"),
            attr("attention_factor", AttrKind::Float, Default::Float(1.0), "multiplies sine and cosine"),
            attr(
                "sections",
                AttrKind::Ints,
                Default::Absent,
                "pairs per position stream, for positions [3, rows]",
            ),
            attr("section_layout", AttrKind::Str, Default::Str("interleaved"), "interleaved or blocked"),
        ],
        effect: Effect::Pure,
        infer: infer_rope,
    },
    OpSchema {
        name: "sinusoid/1",
        summary: "Fixed position vectors (fairseq order: all sines, then all cosines).",
        formula: "half = width/2;  y[t] = [sin(p·fⱼ) | cos(p·fⱼ)], p = positions[t] + offset, fⱼ = 10000^(−j/(half − 1))",
        inputs: &[input("positions", "[T] or [S]")],
        variadic: false,
        attrs: &[
            attr("width", AttrKind::Int, Default::Required, "width of a position vector, even, at least 4"),
            attr("offset", AttrKind::Int, Default::Int(0), "added to every position"),
        ],
        effect: Effect::Pure,
        infer: infer_sinusoid,
    },
];

fn infer_rope(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let x = call.typed(0, "x", ValueKind::Float)?;
    let positions = call.typed(1, "positions", ValueKind::Int)?;
    let inv_freq = call.typed(2, "inv_freq", ValueKind::Float)?;
    if x.shape.len() != 3 {
        return Err(OpError::new(format!("rotates [T, heads, dim], found {}", show(&x.shape)))
            .help("reshape with `g.heads`"));
    }
    let pairs = inv_freq.width().unwrap_or(0);
    if inv_freq.shape.len() != 1 || pairs == 0 || 2 * pairs > x.width().unwrap_or(0) {
        return Err(OpError::new(format!(
            "has {} frequencies for heads of {}",
            show(&inv_freq.shape),
            show(&x.shape)
        )));
    }
    call.choice("style", &["half", "interleaved"])?;
    call.choice("section_layout", &["interleaved", "blocked"])?;
    let streams = positions.shape.len() == 2;
    let sections = call.sizes("sections")?;
    if streams && (sections.len() != 3 || sections.iter().sum::<usize>() != pairs) {
        return Err(OpError::new(format!(
            "needs three sections that add up to {pairs} pairs, found {sections:?}"
        )));
    }
    Ok(float(x.shape.clone(), x.sharding.settled()))
}

fn infer_sinusoid(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let positions = call.typed(0, "positions", ValueKind::Int)?;
    let width = call.size("width")?;
    if width < 4 || !width.is_multiple_of(2) {
        return Err(OpError::new(format!("has an even width of at least 4, found {width}")));
    }
    Ok(float(vec![positions.shape[0], Dim::fixed(width)], Sharding::Replicated))
}
