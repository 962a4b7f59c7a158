//! Inputs and constants.

use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::{Tensor, Value};

/// Takes an input from the batch, checked against the shape that the graph declares.
pub(super) fn input(args: &Args<'_>) -> Result<Vec<Value>, Fault> {
    let name = args.text("name");
    let fed = args.batch.input(name).ok_or_else(|| Fault::MissingInput { name: name.to_owned() })?;
    let (kind, shape) = match fed {
        Value::Float(tensor) => ("floats", &tensor.shape),
        Value::Int(ints) => ("integers", &ints.shape),
        Value::State => return Err(Fault::MissingInput { name: name.to_owned() }),
    };
    let expected_kind = if args.makes_ints() { "integers" } else { "floats" };
    let expected = args.output_shape(0);
    if kind == expected_kind && *shape == expected {
        return Ok(vec![fed.clone()]);
    }
    Err(Fault::InputShape {
        name: name.to_owned(),
        expected: format!("{expected_kind} {expected:?}"),
        found: format!("{kind} {shape:?}"),
    })
}

pub(super) fn constant(args: &Args<'_>) -> Result<Tensor, Fault> {
    let values = args.node.attrs.floats("values").unwrap_or(&[]);
    Tensor::new(&[values.len()], values.iter().map(|&v| v as f32).collect())
}
