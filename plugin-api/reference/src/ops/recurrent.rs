//! Ops that carry state from token to token.

use super::elementwise::logistic;
use crate::error::Fault;
use crate::interpret::Args;
use crate::state::Sequence;
use crate::tensor::{Tensor, Value, dot};

/// `y[t, c] = act(Σᵢ w[c, i] · x[t − K + 1 + i, c])`. The state keeps the last `K − 1` inputs of every channel.
pub(super) fn causal_conv1d(args: &Args<'_>, sequences: &mut [&mut Sequence]) -> Result<Value, Fault> {
    let (x, w, state) = (args.tensor(0)?, args.tensor(1)?, args.state(2)?);
    let silu = args.text("activation") == "silu";
    let (channels, width) = (w.shape[0], w.shape[1]);
    let mut y = Tensor::zeros(&x.shape);
    for (rows, sequence) in args.sequence_segments(0)?.into_iter().zip(sequences) {
        let history = sequence.dense(state)?;
        for row in rows {
            for c in 0..channels {
                let past = &mut history.data[c * (width - 1)..(c + 1) * (width - 1)];
                let newest = x.row(row)[c];
                let (w_past, w_newest) = (&w.row(c)[..width - 1], w.row(c)[width - 1]);
                let sum = dot(w_past, past) + f64::from(w_newest) * f64::from(newest);
                y.data[row * channels + c] = if silu { sum * logistic(sum) } else { sum } as f32;
                past.rotate_left(1);
                if let Some(last) = past.last_mut() {
                    *last = newest;
                }
            }
        }
    }
    Ok(y.into())
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
