//! Views and rearrangements.

use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::{Tensor, Value};

pub(super) fn reshape(args: &Args<'_>) -> Result<Tensor, Fault> {
    let x = args.tensor(0)?;
    x.reshaped([&x.shape[..1], &args.sizes("dims")].concat())
}

pub(super) fn flatten(args: &Args<'_>) -> Result<Tensor, Fault> {
    let x = args.tensor(0)?;
    x.reshaped(vec![x.shape[0], x.row_len()])
}

pub(super) fn permute(args: &Args<'_>) -> Result<Tensor, Fault> {
    Ok(args.tensor(0)?.permuted(&args.sizes("axes")))
}

/// Consecutive pieces of one axis.
pub(super) fn split(args: &Args<'_>) -> Result<Vec<Value>, Fault> {
    let (x, axis) = (args.tensor(0)?, args.size("axis"));
    let (_, size, after) = x.around(axis);
    let mut start = 0;
    let piece = |len: usize| {
        let range = start * after..(start + len) * after;
        start += len;
        let data = x.data.chunks(size * after).flat_map(|part| part[range.clone()].iter().copied()).collect();
        let mut shape = x.shape.clone();
        shape[axis] = len;
        Tensor::new(&shape, data).map(Value::Float)
    };
    args.sizes("sizes").into_iter().map(piece).collect()
}

pub(super) fn concat(args: &Args<'_>) -> Result<Tensor, Fault> {
    let axis = args.size("axis");
    let parts = (0..args.num_inputs()).map(|i| args.tensor(i)).collect::<Result<Vec<_>, _>>()?;
    let (before, _, after) = parts[0].around(axis);
    let mut data = Vec::with_capacity(parts.iter().map(|p| p.data.len()).sum());
    for b in 0..before {
        for part in &parts {
            let len = part.shape[axis] * after;
            data.extend_from_slice(&part.data[b * len..(b + 1) * len]);
        }
    }
    let mut shape = parts[0].shape.clone();
    shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
    Tensor::new(&shape, data)
}

/// `y[…, i, …] = x[…, i / times, …]`
pub(super) fn repeat(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, axis, times) = (args.tensor(0)?, args.size("axis"), args.size("times"));
    let (_, _, after) = x.around(axis);
    let data = x.data.chunks(after).flat_map(|entry| entry.repeat(times)).collect();
    let mut shape = x.shape.clone();
    shape[axis] *= times;
    Tensor::new(&shape, data)
}
