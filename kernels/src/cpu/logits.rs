//! Reductions over the vocabulary, spread over the threads in fixed chunks.

use super::isa::Kernel;
use super::shared::SharedSlice;
use super::simd::Simd;
use super::{Cpu, math, norm};
use crate::error::{KernelError, Result, ensure_len, rows_of};

/// Columns of a chunk.
const CHUNK: usize = 1 << 13;

/// Index of the largest logit of each row of `width`; ties go to the lowest index, NaN never wins.
///
/// # Errors
/// A length does not fit.
pub fn argmax(cpu: &Cpu, logits: &[f32], width: usize, out: &mut [u32]) -> Result<()> {
    const OP: &str = "argmax";
    let rows = rows_of(OP, "logits", logits.len(), width)?;
    ensure_len(OP, "out", out.len(), rows)?;
    let best = per_chunk(cpu, logits, width, |chunk| {
        let max = norm::max(chunk);
        let index = chunk.iter().position(|&v| v == max).unwrap_or(0);
        (max, index as u32)
    });
    let chunks = width.div_ceil(CHUNK);
    for (out, best) in out.iter_mut().zip(best.chunks_exact(chunks)) {
        let mut winner = (f32::NEG_INFINITY, 0);
        for (i, &(max, index)) in best.iter().enumerate() {
            if max > winner.0 {
                winner = (max, (i * CHUNK) as u32 + index);
            }
        }
        *out = winner.1;
    }
    Ok(())
}

/// The `k` largest logits of one row as (id, logit), largest first; ties in the order of the ids, NaN last.
#[must_use]
pub fn top_k(cpu: &Cpu, row: &[f32], k: usize) -> Vec<(u32, f32)> {
    let k = k.min(row.len());
    if k == 0 {
        return Vec::new();
    }
    let order = |a: &(u32, f32), b: &(u32, f32)| {
        let key = |v: f32| if v.is_nan() { f32::NEG_INFINITY } else { v };
        let nan_last = a.1.is_nan().cmp(&b.1.is_nan());
        key(b.1).total_cmp(&key(a.1)).then(nan_last).then(a.0.cmp(&b.0))
    };
    let candidates = per_chunk(cpu, row, row.len(), |chunk| {
        // Zero of either sign compares equal by value, so ids decide.
        let mut all: Vec<(u32, f32)> = chunk.iter().enumerate().map(|(i, &v)| (i as u32, v + 0.0)).collect();
        if all.len() > k {
            all.select_nth_unstable_by(k - 1, order);
            all.truncate(k);
        }
        all
    });
    let mut all: Vec<(u32, f32)> = candidates
        .into_iter()
        .enumerate()
        .flat_map(|(c, chunk)| chunk.into_iter().map(move |(i, v)| ((c * CHUNK) as u32 + i, v)))
        .collect();
    all.sort_unstable_by(order);
    all.truncate(k);
    all
}

/// `log(softmax(row))[id]` for each (row, id) of `picks`.
///
/// # Errors
/// A length does not fit, or a pick does not exist.
pub fn log_softmax_at(
    cpu: &Cpu,
    logits: &[f32],
    width: usize,
    picks: &[(usize, u32)],
    out: &mut [f32],
) -> Result<()> {
    const OP: &str = "log_softmax_at";
    let rows = rows_of(OP, "logits", logits.len(), width)?;
    ensure_len(OP, "out", out.len(), picks.len())?;
    for (position, &(row, id)) in picks.iter().enumerate() {
        for (found, limit) in [(row, rows), (id as usize, width)] {
            if found >= limit {
                return Err(KernelError::Index { op: OP, argument: "picks", position, found, limit });
            }
        }
    }
    let mut known: Option<(usize, f32)> = None;
    for (out, &(row, id)) in out.iter_mut().zip(picks) {
        let values = &logits[row * width..][..width];
        let total = match known {
            Some((r, total)) if r == row => total,
            _ => log_sum_exp(cpu, values),
        };
        known = Some((row, total));
        *out = values[id as usize] - total;
    }
    Ok(())
}

/// ln Σ e^x of one row.
fn log_sum_exp(cpu: &Cpu, row: &[f32]) -> f32 {
    let maxima = per_chunk(cpu, row, row.len(), norm::max);
    let max = norm::max(&maxima);
    let sums = per_chunk(cpu, row, row.len(), |chunk| norm::reduce(chunk, |x| math::exp(x - max)));
    // A few dozen terms at most: summed in f64, in order.
    max + (sums.iter().map(|&s| f64::from(s)).sum::<f64>()).ln() as f32
}

/// f of each chunk of each row, chunks of a row in order.
fn per_chunk<T, F>(cpu: &Cpu, x: &[f32], width: usize, f: F) -> Vec<T>
where
    T: Send + Default + Clone,
    F: Fn(&[f32]) -> T + Sync,
{
    let chunks = width.div_ceil(CHUNK);
    let total = x.len() / width.max(1) * chunks;
    let mut results = vec![T::default(); total];
    let shared = SharedSlice::new(&mut results);
    cpu.pool().for_each(total, 1, |range| {
        for i in range {
            let (row, start) = (i / chunks, i % chunks * CHUNK);
            let chunk = &x[row * width..][..width][start..width.min(start + CHUNK)];
            // SAFETY: every index is handed out once, and there are `total` results.
            let result = unsafe { shared.part(i..i + 1) };
            cpu.launch(Chunk { f: &f, chunk, result });
        }
    });
    results
}

struct Chunk<'a, F, T> {
    f: &'a F,
    chunk: &'a [f32],
    result: &'a mut [T],
}

impl<T, F: Fn(&[f32]) -> T> Kernel for Chunk<'_, F, T> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.result[0] = (self.f)(self.chunk);
    }
}
