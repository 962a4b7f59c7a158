//! Products with weights, and table lookup.

use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::{Tensor, dot};

/// `y[…, n] = Σₖ x[…, k] · w[n, k] + b[n]`
pub(super) fn linear(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, w, b) = (args.tensor(0)?, args.tensor(1)?, args.optional(2)?);
    let (outputs, inputs) = (w.shape[0], w.shape[1]);
    let mut data = Vec::with_capacity(x.data.len() / inputs * outputs);
    for row in x.data.chunks(inputs) {
        for n in 0..outputs {
            let bias = b.map_or(0.0, |b| f64::from(b.data[n]));
            data.push((dot(row, w.row(n)) + bias) as f32);
        }
    }
    let mut shape = x.shape.clone();
    shape.pop();
    shape.push(outputs);
    Tensor::new(&shape, data)
}

/// `y[t, h, n] = Σₖ x[t, h, k] · w[h, n, k]`
pub(super) fn head_linear(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, w) = (args.tensor(0)?, args.tensor(1)?);
    let (heads, outputs, inputs) = (w.shape[0], w.shape[1], w.shape[2]);
    let mut data = Vec::with_capacity(x.shape[0] * heads * outputs);
    for (i, row) in x.data.chunks(inputs).enumerate() {
        data.extend(w.row(i % heads).chunks(inputs).map(|w| dot(row, w) as f32));
    }
    Tensor::new(&[x.shape[0], heads, outputs], data)
}

/// `y[…] = w[ids[…]]`
pub(super) fn embedding(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (ids, w) = (args.ints(0)?, args.tensor(1)?);
    let limit = w.shape[0];
    let mut data = Vec::with_capacity(ids.data.len() * w.width());
    for &id in &ids.data {
        let row = usize::try_from(id).ok().filter(|&row| row < limit);
        let row = row.ok_or(Fault::OutOfRange { what: "token id", index: id, limit })?;
        data.extend_from_slice(w.row(row));
    }
    Tensor::new(&[ids.shape.as_slice(), &[w.width()]].concat(), data)
}
