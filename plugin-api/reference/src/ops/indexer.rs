//! Choosing the positions that sparse attention reads.

use crate::error::Fault;
use crate::interpret::Args;
use crate::state::{KvRows, Sequence};
use crate::tensor::{Ints, Tensor, Value, dot, top_k};

/// Stands for an entry that names nothing.
const NOTHING: i64 = -1;

/// `score(j) = Σₕ wₕ · act(scale · qₕ·kⱼ)`; the best positions or blocks of every row, in order of rank.
pub(super) fn indexer_topk(args: &Args<'_>, sequences: &mut [&mut Sequence]) -> Result<Value, Fault> {
    let (state, shape) = (args.state(1)?, args.output_shape(0));
    let entries = shape[shape.len() - 1];
    let mut data = Vec::with_capacity(shape.iter().product());
    for (rows, sequence) in args.sequence_segments(0)?.into_iter().zip(sequences) {
        let keys = sequence.kv(state)?;
        let first_position = keys.len().saturating_sub(rows.len());
        let candidates = Candidates::of(args, keys)?;
        for (offset, row) in rows.enumerate() {
            let position = first_position + offset;
            for scores in candidates.scores(args, row, position)? {
                let mut chosen = candidates.choose(args, &scores, position);
                chosen.resize(entries, NOTHING);
                data.extend(chosen);
            }
        }
    }
    Ints::new(&shape, data).map(Value::Int)
}

/// The keys that compete: of positions, or of blocks that have a key of their own.
struct Candidates {
    keys: Vec<Vec<f32>>,
    block: usize,
    pool: Pool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pool {
    None,
    MeanKeys,
    MaxScores,
}

impl Candidates {
    fn of(args: &Args<'_>, kept: &KvRows) -> Result<Self, Fault> {
        let block = args.size("block");
        let pool = match args.text("pool") {
            "mean_keys" => Pool::MeanKeys,
            "max_scores" => Pool::MaxScores,
            _ => Pool::None,
        };
        let positions = (0..kept.len()).map(|j| kept.key(j, 0).to_vec());
        let keys = if pool == Pool::MeanKeys {
            let whole_blocks = kept.len() / block;
            (0..whole_blocks).map(|b| mean_key(args, kept, b, block)).collect::<Result<_, _>>()?
        } else {
            positions.collect()
        };
        Ok(Self { keys, block, pool })
    }

    /// Scores of the candidates that a row at `position` may choose, for all heads together or for each.
    fn scores(&self, args: &Args<'_>, row: usize, position: usize) -> Result<Vec<Vec<f64>>, Fault> {
        let (q, weights) = (args.tensor(0)?, args.optional(2)?);
        let (scale, relu) = (args.float("scale"), args.text("activation") == "relu");
        let open = if self.pool == Pool::MeanKeys { (position + 1) / self.block } else { position + 1 };
        let of_head = |head: usize| -> Vec<f64> {
            let dim = q.shape[2];
            let query = &q.row(row)[head * dim..(head + 1) * dim];
            let weight = weights.map_or(1.0, |w| f64::from(w.row(row)[head]));
            let score = |key: &Vec<f32>| {
                let product = scale * dot(query, key);
                weight * if relu { product.max(0.0) } else { product }
            };
            self.keys[..open].iter().map(score).collect()
        };
        let heads: Vec<Vec<f64>> = (0..q.shape[1]).map(of_head).collect();
        if args.flag("per_head") {
            return Ok(heads);
        }
        Ok(vec![(0..open).map(|j| heads.iter().map(|scores| scores[j]).sum()).collect()])
    }

    fn choose(&self, args: &Args<'_>, scores: &[f64], position: usize) -> Vec<i64> {
        let (count, own) = (args.size("top_k"), position / self.block);
        let ranked = |scores: &[f64]| top_k(scores, count).into_iter().map(|i| i as i64).collect::<Vec<_>>();
        match self.pool {
            Pool::None => ranked(scores),
            Pool::MeanKeys => {
                let mut chosen = ranked(scores);
                if !(position + 1).is_multiple_of(self.block) {
                    chosen.push(own as i64);
                }
                chosen
            }
            Pool::MaxScores => {
                let best = |block: &[f64]| block.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mut blocks: Vec<f64> = scores.chunks(self.block).map(best).collect();
                let local = args.size("local_blocks").min(own + 1);
                blocks[own + 1 - local..].fill(f64::INFINITY);
                ranked(&blocks)
            }
        }
    }
}

/// The mean of a block's keys, normed and rotated at the block's first position where the op says so.
fn mean_key(args: &Args<'_>, kept: &KvRows, block: usize, size: usize) -> Result<Vec<f32>, Fault> {
    let first = block * size;
    let dim = kept.key(first, 0).len();
    let mean = |d: usize| {
        let sum: f64 = (first..first + size).map(|j| f64::from(kept.key(j, 0)[d])).sum();
        (sum / size as f64) as f32
    };
    let mut key: Vec<f32> = (0..dim).map(mean).collect();
    if let Some(norm) = args.optional(3)? {
        let shift = if args.flag("zero_centered") { 1.0 } else { 0.0 };
        let scale = (dot(&key, &key) / dim as f64 + args.float("eps")).sqrt().recip();
        for (k, w) in key.iter_mut().zip(&norm.data) {
            *k = (f64::from(*k) * scale * (f64::from(*w) + shift)) as f32;
        }
    }
    if let Some(inv_freq) = args.optional(4)? {
        rotate(&mut key, inv_freq, first);
    }
    Ok(key)
}

/// `rope/1` of one vector, half style.
fn rotate(key: &mut [f32], inv_freq: &Tensor, position: usize) {
    let pairs = inv_freq.data.len();
    for (j, freq) in inv_freq.data.iter().enumerate() {
        let (sin, cos) = f64::from(position as f32 * freq).sin_cos();
        let (x1, x2) = (f64::from(key[j]), f64::from(key[j + pairs]));
        key[j] = (x1 * cos - x2 * sin) as f32;
        key[j + pairs] = (x2 * cos + x1 * sin) as f32;
    }
}
