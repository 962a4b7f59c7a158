//! Rotary and sinusoidal positions.

use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::{Ints, Tensor};

/// `rope/1`. With `angle = position · inv_freq[j]` and `f = attention_factor`, the pair `(x₁, x₂)` of every head becomes
/// `(f·(x₁ cos − x₂ sin), f·(x₂ cos + x₁ sin))`. Pair `j` is `(j, j + R/2)` in half style, `(2j, 2j + 1)` when interleaved;
/// dimensions from `R = 2 · len(inv_freq)` on pass through.
pub(super) fn rope(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, positions, inv_freq) = (args.tensor(0)?, args.ints(1)?, args.tensor(2)?);
    let (factor, sections) = (args.float("attention_factor"), args.sizes("sections"));
    let pairs = inv_freq.data.len();
    let interleaved = args.text("style") == "interleaved";
    let pair = |j: usize| if interleaved { (2 * j, 2 * j + 1) } else { (j, j + pairs) };

    let (heads, dim) = (x.shape[1], x.shape[2]);
    let mut y = x.clone();
    for t in 0..x.shape[0] {
        for j in 0..pairs {
            let position = position(positions, &sections, j, t);
            // Angles are f32 products, as in every implementation that models were trained with.
            let angle = f64::from(position as f32 * inv_freq.data[j]);
            let (sin, cos) = (factor * angle.sin(), factor * angle.cos());
            let (first, second) = pair(j);
            for head in 0..heads {
                let at = (t * heads + head) * dim;
                let (x1, x2) = (f64::from(x.data[at + first]), f64::from(x.data[at + second]));
                y.data[at + first] = (x1 * cos - x2 * sin) as f32;
                y.data[at + second] = (x2 * cos + x1 * sin) as f32;
            }
        }
    }
    Ok(y)
}

/// Position of row `t` for pair `j`: from the one stream, or from the stream that interleaved sections give to the pair.
fn position(positions: &Ints, sections: &[usize], j: usize, t: usize) -> i64 {
    if positions.shape.len() == 1 {
        return positions.data[t];
    }
    let stream = match j % 3 {
        stream @ 1..=2 if j < 3 * sections[stream] => stream,
        _ => 0,
    };
    positions.row(stream)[t]
}

/// `y[t] = [sin(p·fⱼ) | cos(p·fⱼ)]` with `p = positions[t] + offset`, `fⱼ = 10000^(−j / (half − 1))`, `half = width / 2`.
pub(super) fn sinusoid(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (positions, width, offset) = (args.ints(0)?, args.size("width"), args.size("offset"));
    let half = width / 2;
    let step = 10_000_f64.ln() / (half as f64 - 1.0);
    let mut data = Vec::with_capacity(positions.data.len() * width);
    for &position in &positions.data {
        let angle = |j: usize| (position as f64 + offset as f64) * (-(j as f64) * step).exp();
        data.extend((0..half).map(|j| angle(j).sin() as f32));
        data.extend((0..half).map(|j| angle(j).cos() as f32));
    }
    Tensor::new(&[positions.data.len(), width], data)
}
