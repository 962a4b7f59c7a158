//! What the core feeds, what it reads, and what a graph declares.

use super::{attr, input};
use crate::dim::{Dim, Symbol};
use crate::graph::{Sharding, ValueInfo, ValueKind};
use crate::schema::{AttrKind, Call, Default, Effect, OpError, OpSchema, float};

pub(super) const OPS: &[OpSchema] = &[
    OpSchema {
        name: "input/1",
        summary: "A value that the core feeds. Ints: token_ids [T], positions [T], mrope_positions [3, T], next_ids [T], source_ids [S], source_positions [S], image_index [T] (row of image_rows that replaces the row's embedding, −1 for none), patch_positions [3, P] (frame, row and column of each patch), position_taps [P, 4] (entries of a square table with `side` rows that a patch lies between, corners aligned). Floats: hidden [T, width], features [T, width], pixels [P, width], image_rows [P, width], position_weights [P, 4] (bilinear weights of position_taps).",
        formula: "",
        inputs: &[],
        variadic: false,
        attrs: &[
            attr("name", AttrKind::Str, Default::Required, "which input"),
            attr("width", AttrKind::Int, Default::Absent, "last dimension of a float input"),
            attr(
                "side",
                AttrKind::Int,
                Default::Absent,
                "side of the table of position_taps and position_weights",
            ),
        ],
        effect: Effect::Declares,
        infer: infer_input,
    },
    OpSchema {
        name: "output/1",
        summary: "A value that the core reads: final_hidden (text), logits (lm_head, mtp_head), recycle and head_in (mtp), encoder_hidden (encoder), rows (vision).",
        formula: "",
        inputs: &[input("x", "any activation")],
        variadic: false,
        attrs: &[attr("name", AttrKind::Str, Default::Required, "which output")],
        effect: Effect::Declares,
        infer: nothing,
    },
    OpSchema {
        name: "tap/1",
        summary: "Marks a value for inspection or for a draft model. Dead when nobody reads it.",
        formula: "",
        inputs: &[input("x", "any activation")],
        variadic: false,
        attrs: &[
            attr("name", AttrKind::Str, Default::Required, "what it is: `hidden` is the residual stream"),
            attr("index", AttrKind::Int, Default::Int(0), "layer; `hidden` 0 is the embedding"),
        ],
        effect: Effect::Declares,
        infer: nothing,
    },
    OpSchema {
        name: "scope/1",
        summary: "The ops that follow belong to this decoder layer; −1: to none.",
        formula: "",
        inputs: &[],
        variadic: false,
        attrs: &[attr("layer", AttrKind::Int, Default::Required, "layer number or −1")],
        effect: Effect::Declares,
        infer: nothing,
    },
    OpSchema {
        name: "info/1",
        summary: "Facts of the model, any attributes. Known keys: num_layers, hidden_size, vocab_size, context_length, mtp_layers, has_mtp_head, has_encoder, has_vision, decoder_start_token_id, translation.source_format and translation.forced_first_token (texts with {source_language}, {target_language}, {text}), translation.languages (codes, each a token of the tokenizer), vision.attention (frame or clip: which patches are one segment).",
        formula: "",
        inputs: &[],
        variadic: false,
        attrs: &[],
        effect: Effect::Declares,
        infer: nothing,
    },
    OpSchema {
        name: "const/1",
        summary: "A vector of constants, [values].",
        formula: "",
        inputs: &[],
        variadic: false,
        attrs: &[attr("values", AttrKind::Floats, Default::Required, "the constants")],
        effect: Effect::Pure,
        infer: infer_const,
    },
];

fn nothing(_: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    Ok(Vec::new())
}

fn infer_const(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let len = call.attrs.floats("values").map_or(0, <[f64]>::len);
    Ok(float(vec![Dim::fixed(len)], Sharding::Replicated))
}

fn infer_input(call: &Call<'_>) -> Result<Vec<ValueInfo>, OpError> {
    let name = call.attrs.str("name").unwrap_or("");
    let int = |shape| Ok(vec![ValueInfo { kind: ValueKind::Int, shape, sharding: Sharding::Replicated }]);
    let rows = |symbol| -> Result<_, OpError> {
        let width =
            call.size("width").map_err(|_| OpError::new(format!("`{name}` needs the attribute `width`")))?;
        Ok(float(vec![Dim::of(symbol), Dim::fixed(width)], Sharding::Replicated))
    };
    match name {
        "token_ids" | "positions" | "next_ids" | "image_index" => int(vec![Dim::of(Symbol::T)]),
        "mrope_positions" => int(vec![Dim::fixed(3), Dim::of(Symbol::T)]),
        "source_ids" | "source_positions" => int(vec![Dim::of(Symbol::S)]),
        "hidden" | "features" => rows(Symbol::T),
        "pixels" | "image_rows" => rows(Symbol::P),
        "patch_positions" => int(vec![Dim::fixed(3), Dim::of(Symbol::P)]),
        "position_taps" | "position_weights" if call.attrs.size("side").is_none_or(|side| side < 2) => {
            Err(OpError::new(format!("`{name}` needs the attribute `side`, at least 2")))
        }
        "position_taps" => int(vec![Dim::of(Symbol::P), Dim::fixed(4)]),
        "position_weights" => Ok(float(vec![Dim::of(Symbol::P), Dim::fixed(4)], Sharding::Replicated)),
        _ => Err(OpError::new(format!("does not know the input `{name}`"))
            .help("the inputs are listed in op-set.md under input/1")),
    }
}
