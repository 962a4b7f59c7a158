//! `op-set.md`, generated from the schema so that it cannot drift.

use std::fmt::Write;

use crate::ops::FAMILIES;
use crate::schema::{Default, OpSchema};

/// The whole document.
#[must_use]
pub fn op_set_markdown() -> String {
    let mut text = String::from(
        "# Op set\n\nGenerated from the schema in `plugin-api/graph/src/ops/`; do not edit. The exact meaning of every op is its \
         implementation in `plugin-api/reference/src/ops/`.\n\nT is the number of rows of a step, S of source rows, P of patches (of image rows in `text`). \
         Rows of one sequence are contiguous and in order; one trace serves prefill, decode and verification.\n",
    );
    for (family, ops) in FAMILIES {
        let _ = write!(text, "\n## {family}\n");
        for op in *ops {
            describe(op, &mut text);
        }
    }
    text
}

fn describe(op: &OpSchema, text: &mut String) {
    let _ = write!(text, "\n### `{}`\n\n{}\n", op.name, op.summary);
    if !op.formula.is_empty() {
        let _ = write!(text, "\n`{}`\n", op.formula);
    }
    if !op.inputs.is_empty() {
        text.push_str("\n| input | | |\n|---|---|---|\n");
        for input in op.inputs {
            let optional = if input.optional { "optional" } else { "" };
            let _ = writeln!(text, "| {} | {} | {optional} |", input.name, input.doc);
        }
        if op.variadic {
            text.push_str("\nThe last input may repeat.\n");
        }
    }
    if !op.attrs.is_empty() {
        text.push_str("\n| attribute | kind | default | |\n|---|---|---|---|\n");
        for attr in op.attrs {
            let default = match attr.default {
                Default::Required => "required".to_owned(),
                Default::Absent => "absent".to_owned(),
                Default::Int(v) => v.to_string(),
                Default::Float(v) => v.to_string(),
                Default::Bool(v) => v.to_string(),
                Default::Str(v) => v.to_owned(),
            };
            let _ = writeln!(text, "| {} | {:?} | {default} | {} |", attr.name, attr.kind, attr.doc);
        }
    }
}
