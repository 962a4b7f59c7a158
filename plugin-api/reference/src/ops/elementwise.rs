//! Elementwise ops and reductions of one axis.

use std::f64::consts::{FRAC_2_SQRT_PI, PI, SQRT_2};

use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::{self, Tensor};

pub(super) fn add(args: &Args<'_>) -> Result<Tensor, Fault> {
    args.tensor(0)?.zip(args.tensor(1)?, |a, b| a + b)
}

pub(super) fn mul(args: &Args<'_>) -> Result<Tensor, Fault> {
    args.tensor(0)?.zip(args.tensor(1)?, |a, b| a * b)
}

pub(super) fn div(args: &Args<'_>) -> Result<Tensor, Fault> {
    args.tensor(0)?.zip(args.tensor(1)?, |a, b| a / b)
}

/// `f` in f64 of every element.
fn map(args: &Args<'_>, f: impl Fn(f64) -> f64) -> Result<Tensor, Fault> {
    Ok(args.tensor(0)?.map(|x| f(f64::from(x)) as f32))
}

/// `factor · x + shift`
pub(super) fn affine(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (factor, shift) = (args.float("factor"), args.float("shift"));
    map(args, |x| factor * x + shift)
}

/// `min(max(x, min), max)`
pub(super) fn clamp(args: &Args<'_>) -> Result<Tensor, Fault> {
    let min = args.node.attrs.float("min").unwrap_or(f64::NEG_INFINITY);
    let max = args.node.attrs.float("max").unwrap_or(f64::INFINITY);
    map(args, |x| x.max(min).min(max))
}

/// `cap · tanh(x / cap)`
pub(super) fn softcap(args: &Args<'_>) -> Result<Tensor, Fault> {
    let cap = args.float("cap");
    map(args, |x| cap * (x / cap).tanh())
}

/// `sign(x) · √max(|x|, min)`; the sign of 0 is 0.
pub(super) fn signed_sqrt(args: &Args<'_>) -> Result<Tensor, Fault> {
    let min = args.float("min");
    map(args, |x| if x == 0.0 { 0.0 } else { x.signum() * x.abs().max(min).sqrt() })
}

/// `1 / (1 + e⁻ˣ)`
pub(super) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn silu(args: &Args<'_>) -> Result<Tensor, Fault> {
    map(args, |x| x * logistic(x))
}

pub(super) fn sigmoid(args: &Args<'_>) -> Result<Tensor, Fault> {
    map(args, logistic)
}

pub(super) fn relu(args: &Args<'_>) -> Result<Tensor, Fault> {
    map(args, |x| x.max(0.0))
}

pub(super) fn tanh(args: &Args<'_>) -> Result<Tensor, Fault> {
    map(args, f64::tanh)
}

pub(super) fn exp(args: &Args<'_>) -> Result<Tensor, Fault> {
    map(args, f64::exp)
}

/// `ln(1 + eˣ)`, without overflow.
pub(super) fn softplus(args: &Args<'_>) -> Result<Tensor, Fault> {
    map(args, |x| x.max(0.0) + (-x.abs()).exp().ln_1p())
}

/// `x/2 · (1 + erf(x/√2))`
pub(super) fn gelu(args: &Args<'_>) -> Result<Tensor, Fault> {
    map(args, gelu_of)
}

pub(super) fn gelu_of(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x / SQRT_2))
}

/// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`
pub(super) fn gelu_tanh(args: &Args<'_>) -> Result<Tensor, Fault> {
    map(args, |x| 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()))
}

/// `erf(x) = 2/√π · e^(−x²) · Σₙ 2ⁿ x²ⁿ⁺¹ / (1·3·…·(2n+1))`: no term cancels another.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

pub(super) fn softmax(args: &Args<'_>) -> Result<Tensor, Fault> {
    let softmax = |x: &[f32]| {
        let x: Vec<f64> = x.iter().map(|&v| v.into()).collect();
        tensor::softmax(&x).into_iter().map(|p| p as f32).collect()
    };
    Ok(args.tensor(0)?.map_last(softmax))
}

/// Rows and columns of every matrix normalised in turn, columns last.
pub(super) fn sinkhorn(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, iterations, eps) = (args.tensor(0)?, args.size("iterations"), args.float("eps"));
    let n = x.width();
    let mut data = Vec::with_capacity(x.data.len());
    for matrix in x.data.chunks(n * n) {
        let rows: Vec<f64> = matrix.iter().map(|&v| v.into()).collect();
        let mut m: Vec<f64> = rows.chunks(n).flat_map(tensor::softmax).map(|p| p + eps).collect();
        for iteration in 0..iterations {
            if iteration > 0 {
                for row in m.chunks_mut(n) {
                    let sum = row.iter().sum::<f64>() + eps;
                    for v in row.iter_mut() {
                        *v /= sum;
                    }
                }
            }
            for column in 0..n {
                let sum = (0..n).map(|row| m[row * n + column]).sum::<f64>() + eps;
                (0..n).for_each(|row| m[row * n + column] /= sum);
            }
        }
        data.extend(m.into_iter().map(|v| v as f32));
    }
    Tensor::new(&x.shape, data)
}

pub(super) fn sum(args: &Args<'_>) -> Result<Tensor, Fault> {
    reduce(args, |sum, _| sum)
}

pub(super) fn mean(args: &Args<'_>) -> Result<Tensor, Fault> {
    reduce(args, |sum, count| sum / count)
}

fn reduce(args: &Args<'_>, finish: impl Fn(f64, f64) -> f64) -> Result<Tensor, Fault> {
    let (x, axis) = (args.tensor(0)?, args.size("axis"));
    let (before, size, after) = x.around(axis);
    let mut data = Vec::with_capacity(before * after);
    for b in 0..before {
        for a in 0..after {
            let sum: f64 = (0..size).map(|i| f64::from(x.data[(b * size + i) * after + a])).sum();
            data.push(finish(sum, size as f64) as f32);
        }
    }
    let mut shape = x.shape.clone();
    shape.remove(axis);
    Tensor::new(&shape, data)
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn erf_has_its_known_values() {
        for (x, y) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - y).abs() < 1e-14);
            assert!((erf(-x) + y).abs() < 1e-14);
        }
    }
}
