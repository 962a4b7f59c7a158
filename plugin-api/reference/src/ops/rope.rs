//! Rotary and sinusoidal positions.

use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::Tensor;

/// `rope/1`. With `angle = position · inv_freq[j]` and `f = attention_factor`, the pair `(x₁, x₂)` of every head becomes
/// `(f·(x₁ cos − x₂ sin), f·(x₂ cos + x₁ sin))`. Pair `j` is `(j, j + R/2)` in half style, `(2j, 2j + 1)` when interleaved;
/// dimensions from `R = 2 · len(inv_freq)` on pass through.
pub(super) fn rope(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, positions, inv_freq) = (args.tensor(0)?, args.ints(1)?, args.tensor(2)?);
    let (factor, sections) = (args.float("attention_factor"), args.sizes("sections"));
    let blocked = args.text("section_layout") == "blocked";
    let pairs = inv_freq.data.len();
    let interleaved = args.text("style") == "interleaved";
    let pair = |j: usize| if interleaved { (2 * j, 2 * j + 1) } else { (j, j + pairs) };

    let (heads, dim) = (x.shape[1], x.shape[2]);
    let mut y = x.clone();
    for t in 0..x.shape[0] {
        for j in 0..pairs {
            let stream =
                if blocked { blocked_stream(&sections, j) } else { interleaved_stream(&sections, j) };
            let position =
                if positions.shape.len() == 1 { positions.data[t] } else { positions.row(stream)[t] };
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

/// The position stream of pair `j`: streams 1 and 2 take every third pair until their section is full.
fn interleaved_stream(sections: &[usize], j: usize) -> usize {
    match j % 3 {
        stream @ 1..=2 if sections.get(stream).is_some_and(|size| j < 3 * size) => stream,
        _ => 0,
    }
}

/// The position stream of pair `j`: sections follow one another.
fn blocked_stream(sections: &[usize], j: usize) -> usize {
    let mut end = 0;
    let ends = sections.iter().map(|size| {
        end += size;
        end
    });
    ends.take_while(|&end| end <= j).count()
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
