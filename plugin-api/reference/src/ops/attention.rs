//! KV writes, and attention over a state or over the rows themselves.

use crate::error::Fault;
use crate::interpret::Args;
use crate::state::{KvRows, Sequence};
use crate::tensor::{Ints, Tensor, Value, dot, softmax};

/// Appends each sequence's keys and values to its state.
pub(super) fn kv_write(args: &Args<'_>, sequences: &mut [&mut Sequence]) -> Result<Value, Fault> {
    let (state, k, v) = (args.state(0)?, args.tensor(1)?, args.optional(2)?);
    for (rows, sequence) in args.sequence_segments(1)?.into_iter().zip(sequences) {
        let kept = sequence.kv(state)?;
        for row in rows {
            kept.push(k.row(row), v.map(|v| v.row(row)));
        }
    }
    Ok(Value::State)
}

/// Keys and values that the rows of one sequence attend to.
enum Memory<'a> {
    State(&'a KvRows),
    /// Rows `start .. start + len` of `k` and `v`.
    Rows {
        k: &'a Tensor,
        v: &'a Tensor,
        start: usize,
        len: usize,
    },
}

impl Memory<'_> {
    fn len(&self) -> usize {
        match self {
            Self::State(rows) => rows.len(),
            Self::Rows { len, .. } => *len,
        }
    }

    fn key(&self, token: usize, head: usize) -> &[f32] {
        match self {
            Self::State(rows) => rows.key(token, head),
            Self::Rows { k, start, .. } => head_of(k, start + token, head),
        }
    }

    fn value(&self, token: usize, head: usize) -> &[f32] {
        match self {
            Self::State(rows) => rows.value(token, head),
            Self::Rows { v, start, .. } => head_of(v, start + token, head),
        }
    }
}

fn head_of(x: &Tensor, row: usize, head: usize) -> &[f32] {
    let dim = x.shape[2];
    &x.row(row)[head * dim..(head + 1) * dim]
}

/// `y = softmax(scale · q·kᵀ, masked) · v`. The last rows of a sequence are the newest tokens of its state: of `n` rows over
/// `len` tokens, row `r` has position `len − n + r`.
pub(super) fn attention(args: &Args<'_>, sequences: &mut [&mut Sequence]) -> Result<Value, Fault> {
    let q = args.tensor(0)?;
    let mut y = Tensor { shape: args.output_shape(0), data: Vec::new() };
    if let Some(state) = args.optional_state(1) {
        for (rows, sequence) in args.sequence_segments(0)?.into_iter().zip(sequences) {
            let memory = Memory::State(sequence.kv(state)?);
            attend_rows(args, q, rows, &memory, &mut y.data)?;
        }
    } else {
        let (k, v) = (args.tensor(2)?, args.tensor(3)?);
        for rows in args.segments(0) {
            let memory = Memory::Rows { k, v, start: rows.start, len: rows.len() };
            attend_rows(args, q, rows, &memory, &mut y.data)?;
        }
    }
    Tensor::new(&y.shape, y.data).map(Value::Float)
}

fn attend_rows(
    args: &Args<'_>,
    q: &Tensor,
    rows: std::ops::Range<usize>,
    memory: &Memory<'_>,
    out: &mut Vec<f32>,
) -> Result<(), Fault> {
    let kv_heads = match memory {
        Memory::State(rows) => rows.num_heads(),
        Memory::Rows { k, .. } => k.shape[1],
    };
    let (heads, scale, causal) = (q.shape[1], args.float("scale"), args.text("mask") == "causal");
    let (window, softcap) = (args.node.attrs.size("window"), args.node.attrs.float("softcap"));
    let sinks = args.optional(5)?;
    let (select, select_block) = (args.optional_ints(4)?, args.size("select_block"));
    let len = memory.len();
    let first_position = len.saturating_sub(rows.len());
    for (offset, row) in rows.enumerate() {
        let position = first_position + offset;
        let visible =
            |j: usize| (!causal || j <= position) && window.is_none_or(|window| j + window > position);
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let selected = select.map(|s| selected(s, row, kv_head, select_block, len));
            let visible = |j: usize| visible(j) && selected.as_ref().is_none_or(|s| s[j]);
            let query = head_of(q, row, head);
            let score = |j: usize| {
                let score = scale * dot(query, memory.key(j, kv_head));
                softcap.map_or(score, |cap| cap * (score / cap).tanh())
            };
            let mut scores: Vec<f64> =
                (0..len).map(|j| if visible(j) { score(j) } else { f64::NEG_INFINITY }).collect();
            scores.extend(sinks.map(|sinks| f64::from(sinks.data[head])));
            weighted_sum(&softmax(&scores)[..len], |j| memory.value(j, kv_head), out);
        }
    }
    Ok(())
}

/// Which of `len` positions the entries for a row and KV head name.
fn selected(select: &Ints, row: usize, kv_head: usize, block: usize, len: usize) -> Vec<bool> {
    let entries = select.row(row);
    let per_head = select.shape[select.shape.len() - 1];
    let entries = if select.shape.len() == 3 { &entries[kv_head * per_head..][..per_head] } else { entries };
    let mut selected = vec![false; len];
    for entry in entries.iter().filter_map(|&e| usize::try_from(e).ok()) {
        selected.iter_mut().skip(entry * block).take(block).for_each(|s| *s = true);
    }
    selected
}

/// Appends `Σⱼ weightⱼ · value(j)`.
fn weighted_sum<'v>(weights: &[f64], value: impl Fn(usize) -> &'v [f32], out: &mut Vec<f32>) {
    let mut sum: Vec<f64> = Vec::new();
    for (j, &weight) in weights.iter().enumerate() {
        let value = value(j);
        sum.resize(value.len(), 0.0);
        if weight != 0.0 {
            for (s, v) in sum.iter_mut().zip(value) {
                *s += weight * f64::from(*v);
            }
        }
    }
    out.extend(sum.into_iter().map(|s| s as f32));
}
