//! Between patches of images and rows of text.

use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::Tensor;

/// `y[p] = [x[count·p] | … | x[count·p + count − 1]]`
pub(super) fn group_rows(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, count) = (args.tensor(0)?, args.size("count"));
    x.reshaped(vec![x.shape[0] / count, x.shape[1] * count])
}

/// `y[t] = rows[index[t]]` where `index[t] ≥ 0`, else `x[t]`
pub(super) fn merge_rows(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, rows, index) = (args.tensor(0)?, args.tensor(1)?, args.ints(2)?);
    let limit = rows.shape[0];
    let mut data = Vec::with_capacity(x.data.len());
    for (t, &index) in index.data.iter().enumerate() {
        data.extend_from_slice(match usize::try_from(index) {
            Err(_) => x.row(t),
            Ok(row) if row < limit => rows.row(row),
            Ok(_) => return Err(Fault::OutOfRange { what: "image row", index, limit }),
        });
    }
    Tensor::new(&x.shape, data)
}
