//! Every op by name. A family's file is named as in the schema.

mod attention;
mod elementwise;
mod indexer;
mod io;
mod linear;
mod moe;
mod norm;
mod recurrent;
mod rope;
mod shape;
mod vision;

use crate::error::Fault;
use crate::interpret::Args;
use crate::state::Sequence;
use crate::tensor::{Tensor, Value};

/// How an op is computed.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    /// One activation from its inputs.
    One(fn(&Args<'_>) -> Result<Tensor, Fault>),
    /// Any number of values from its inputs.
    Many(fn(&Args<'_>) -> Result<Vec<Value>, Fault>),
    /// Reads or advances the states of the sequences.
    Stateful(fn(&Args<'_>, &mut [&mut Sequence]) -> Result<Value, Fault>),
    /// Computes nothing: a declaration, or a weight that was made at load.
    Declares,
    /// Hands a value to the caller.
    Output,
    /// Shows a value to whoever looks.
    Tap,
}

/// The rule of an op, if this version implements it.
pub(crate) fn find(op: &str) -> Option<Rule> {
    Some(match op {
        "input/1" => Rule::Many(io::input),
        "output/1" => Rule::Output,
        "tap/1" => Rule::Tap,
        "const/1" => Rule::One(io::constant),
        "scope/1" | "info/1" | "state/1" => Rule::Declares,
        weight if weight == "weight/1" || weight.starts_with("weight.") => Rule::Declares,

        "linear/1" => Rule::One(linear::linear),
        "head_linear/1" => Rule::One(linear::head_linear),
        "embedding/1" => Rule::One(linear::embedding),

        "rms_norm/1" => Rule::One(norm::rms_norm),
        "layer_norm/1" => Rule::One(norm::layer_norm),
        "l2_norm/1" => Rule::One(norm::l2_norm),

        "add/1" => Rule::One(elementwise::add),
        "mul/1" => Rule::One(elementwise::mul),
        "div/1" => Rule::One(elementwise::div),
        "affine/1" => Rule::One(elementwise::affine),
        "clamp/1" => Rule::One(elementwise::clamp),
        "softcap/1" => Rule::One(elementwise::softcap),
        "signed_sqrt/1" => Rule::One(elementwise::signed_sqrt),
        "sinkhorn/1" => Rule::One(elementwise::sinkhorn),
        "silu/1" => Rule::One(elementwise::silu),
        "sigmoid/1" => Rule::One(elementwise::sigmoid),
        "relu/1" => Rule::One(elementwise::relu),
        "tanh/1" => Rule::One(elementwise::tanh),
        "exp/1" => Rule::One(elementwise::exp),
        "softplus/1" => Rule::One(elementwise::softplus),
        "gelu/1" => Rule::One(elementwise::gelu),
        "gelu_tanh/1" => Rule::One(elementwise::gelu_tanh),
        "softmax/1" => Rule::One(elementwise::softmax),
        "mean/1" => Rule::One(elementwise::mean),
        "sum/1" => Rule::One(elementwise::sum),

        "reshape/1" => Rule::One(shape::reshape),
        "flatten/1" => Rule::One(shape::flatten),
        "split/1" => Rule::Many(shape::split),
        "concat/1" => Rule::One(shape::concat),
        "repeat/1" => Rule::One(shape::repeat),
        "permute/1" => Rule::One(shape::permute),

        "rope/1" => Rule::One(rope::rope),
        "sinusoid/1" => Rule::One(rope::sinusoid),

        "kv_write/1" => Rule::Stateful(attention::kv_write),
        "attention/1" => Rule::Stateful(attention::attention),

        "indexer_topk/1" => Rule::Stateful(indexer::indexer_topk),

        "ngram_hash/1" => Rule::Stateful(recurrent::ngram_hash),
        "causal_conv1d/1" => Rule::Stateful(recurrent::causal_conv1d),
        "gated_delta_rule/1" => Rule::Stateful(recurrent::gated_delta_rule),

        "group_rows/1" => Rule::One(vision::group_rows),
        "merge_rows/1" => Rule::One(vision::merge_rows),

        "moe/1" => Rule::One(moe::moe),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_op_of_the_schema_has_a_meaning() {
        let missing: Vec<_> = metrale_graph::schema::all_ops()
            .map(|op| op.name)
            .filter(|name| super::find(name).is_none())
            .collect();
        assert!(missing.is_empty(), "without a reference implementation: {missing:?}");
    }
}
