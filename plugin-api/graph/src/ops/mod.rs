//! The op set, one family per file.

mod attention;
mod elementwise;
mod indexer;
mod io;
mod linear;
mod moe;
mod norm;
mod positions;
mod recurrent;
mod shape;
mod vision;
mod weights;

use crate::schema::{AttrKind, AttrSpec, Default, Input, OpSchema};

/// Families in the order of the documentation.
pub(crate) const FAMILIES: &[(&str, &[OpSchema])] = &[
    ("Inputs, outputs, declarations", io::OPS),
    ("Weights (computed at load)", weights::OPS),
    ("Linear", linear::OPS),
    ("Normalisation", norm::OPS),
    ("Elementwise", elementwise::OPS),
    ("Shape", shape::OPS),
    ("Positions", positions::OPS),
    ("KV caches and attention", attention::OPS),
    ("Sparse attention", indexer::OPS),
    ("Recurrent", recurrent::OPS),
    ("Mixture of experts", moe::OPS),
    ("Vision", vision::OPS),
];

const fn input(name: &'static str, doc: &'static str) -> Input {
    Input { name, optional: false, doc }
}

const fn optional(name: &'static str, doc: &'static str) -> Input {
    Input { name, optional: true, doc }
}

const fn attr(name: &'static str, kind: AttrKind, default: Default, doc: &'static str) -> AttrSpec {
    AttrSpec { name, kind, default, doc }
}
