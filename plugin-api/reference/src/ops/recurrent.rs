//! Ops that carry state from token to token.

use super::elementwise::logistic;
use crate::error::Fault;
use crate::interpret::Args;
use crate::state::Sequence;
use crate::tensor::{Ints, Tensor, Value};

/// `y[t, c] = act(Σᵢ w[c, i] · x[t − (K − 1 − i)·dilation, c])`. The state keeps the last `(K − 1)·dilation` inputs of every
/// channel, oldest first.
pub(super) fn causal_conv1d(args: &Args<'_>, sequences: &mut [&mut Sequence]) -> Result<Value, Fault> {
    let (x, w, state) = (args.tensor(0)?, args.tensor(1)?, args.state(2)?);
    let (silu, dilation) = (args.text("activation") == "silu", args.size("dilation"));
    let (channels, width) = (w.shape[0], w.shape[1]);
    let kept = (width - 1) * dilation;
    let mut y = Tensor::zeros(&x.shape);
    for (rows, sequence) in args.sequence_segments(0)?.into_iter().zip(sequences) {
        let history = sequence.dense(state)?;
        for row in rows {
            for c in 0..channels {
                let past = &mut history.data[c * kept..(c + 1) * kept];
                let newest = x.row(row)[c];
                let (w_newest, w_past) = w.row(c).split_last().unwrap_or((&0.0, &[]));
                let past_taps = past.iter().step_by(dilation.max(1));
                let sum: f64 = w_past.iter().zip(past_taps).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let sum = sum + f64::from(*w_newest) * f64::from(newest);
                y.data[row * channels + c] = if silu { sum * logistic(sum) } else { sum } as f32;
                push_newest(past, newest);
            }
        }
    }
    Ok(y.into())
}

/// Drops the oldest entry.
fn push_newest<T>(history: &mut [T], newest: T) {
    history.rotate_left(1.min(history.len()));
    if let Some(last) = history.last_mut() {
        *last = newest;
    }
}

/// `y[t, h] = (⊕ᵢ token[t − i] · multipliers[i]) mod moduli[h] + offsets[h]`; from the reset token back, and before the start,
/// every token counts as reset.
pub(super) fn ngram_hash(args: &Args<'_>, sequences: &mut [&mut Sequence]) -> Result<Value, Fault> {
    let (ids, state) = (args.ints(0)?, args.state(1)?);
    let (orders, moduli, offsets) = (args.sizes("orders"), args.sizes("moduli"), args.sizes("offsets"));
    let multipliers = args.node.attrs.ints("multipliers").unwrap_or(&[]);
    let reset = args.node.attrs.int("reset").unwrap_or(-1);
    let mut rows_of = Vec::with_capacity(ids.data.len() * orders.len());
    for (rows, sequence) in args.sequence_segments(0)?.into_iter().zip(sequences) {
        let history = sequence.tokens(state)?;
        for row in rows {
            let token = ids.data[row];
            let reached = history.iter().rev().take_while(|&&t| t != reset && t >= 0).copied();
            let context: Vec<i64> = std::iter::once(token).chain(reached).collect();
            let product = |i: usize| context.get(i).copied().unwrap_or(reset).wrapping_mul(multipliers[i]);
            for (head, &order) in orders.iter().enumerate() {
                let mixed = (0..order).map(product).fold(0, |mixed, p| mixed ^ p);
                rows_of.push(mixed.rem_euclid(moduli[head] as i64) + offsets[head] as i64);
            }
            push_newest(history, token);
        }
    }
    Ints::new(&[ids.data.len(), orders.len()], rows_of).map(Value::Int)
}

/// Per value head with state `S: [dk, dv]`: `S ← exp(g)·S;  S ← S + k ⊗ β(v − Sᵀk);  o = Sᵀq`.
pub(super) fn gated_delta_rule(args: &Args<'_>, sequences: &mut [&mut Sequence]) -> Result<Value, Fault> {
    let (q, k, v) = (args.tensor(0)?, args.tensor(1)?, args.tensor(2)?);
    let (g, beta, state) = (args.tensor(3)?, args.tensor(4)?, args.state(5)?);
    let (key_heads, dk) = (q.shape[1], q.shape[2]);
    let (value_heads, dv) = (v.shape[1], v.shape[2]);
    let per_channel = g.shape.len() == 3;
    let mut o = Tensor::zeros(&v.shape);
    for (rows, sequence) in args.sequence_segments(0)?.into_iter().zip(sequences) {
        let memory = sequence.dense(state)?;
        for t in rows {
            for h in 0..value_heads {
                let key_head = h / (value_heads / key_heads);
                let s = &mut memory.data[h * dk * dv..(h + 1) * dk * dv];
                let (q, k) = (&q.row(t)[key_head * dk..][..dk], &k.row(t)[key_head * dk..][..dk]);
                let v = &v.row(t)[h * dv..][..dv];
                for i in 0..dk {
                    let g = g.row(t)[if per_channel { h * dk + i } else { h }];
                    let decay = f64::from(g).exp();
                    s[i * dv..(i + 1) * dv].iter_mut().for_each(|s| *s = (f64::from(*s) * decay) as f32);
                }
                let beta = f64::from(beta.row(t)[h]);
                let predicted = transposed_product(s, k, dv);
                let delta: Vec<f64> =
                    v.iter().zip(predicted).map(|(&v, p)| beta * (f64::from(v) - p)).collect();
                for i in 0..dk {
                    for (s, d) in s[i * dv..(i + 1) * dv].iter_mut().zip(&delta) {
                        *s = (f64::from(*s) + f64::from(k[i]) * d) as f32;
                    }
                }
                let read = transposed_product(s, q, dv);
                let out = &mut o.data[(t * value_heads + h) * dv..][..dv];
                out.iter_mut().zip(read).for_each(|(o, r)| *o = r as f32);
            }
        }
    }
    Ok(o.into())
}

/// `Sᵀx` of `s: [x.len(), dv]`.
fn transposed_product(s: &[f32], x: &[f32], dv: usize) -> Vec<f64> {
    let mut y = vec![0.0; dv];
    for (row, &x) in s.chunks(dv).zip(x) {
        for (y, &s) in y.iter_mut().zip(row) {
            *y += f64::from(s) * f64::from(x);
        }
    }
    y
}
