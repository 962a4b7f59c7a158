//! Embedding: rows of a weight by token id.

use super::elementwise::map_rows;
use super::{Cpu, Weight};
use crate::error::{KernelError, Result, ensure_len};

/// Writes rows `ids` of the table `[vocab, width]` to `out` `[T, width]`.
///
/// # Errors
/// An id is not in the vocabulary, or `out` has the wrong length.
pub fn gather(cpu: &Cpu, table: &Weight, ids: &[u32], out: &mut [f32]) -> Result<()> {
    const OP: &str = "gather";
    let limit = table.num_rows();
    if let Some(position) = ids.iter().position(|&id| id as usize >= limit) {
        let found = ids[position] as usize;
        return Err(KernelError::Index { op: OP, argument: "ids", position, found, limit });
    }
    ensure_len(OP, "out", out.len(), ids.len() * table.num_cols())?;
    let rows = table.rows()?;
    map_rows(cpu, table.num_cols(), out, |t, out| rows.dequantize(ids[t] as usize, out));
    Ok(())
}
