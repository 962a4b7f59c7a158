//! Normalisations over the last axis.

use crate::error::Fault;
use crate::interpret::Args;
use crate::tensor::{Tensor, dot};

/// `y = w · x / √(mean(x²) + eps)`, with `1 + w` instead of `w` when zero-centred.
pub(super) fn rms_norm(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, w, eps) = (args.tensor(0)?, args.optional(1)?, args.float("eps"));
    let shift = if args.flag("zero_centered") { 1.0 } else { 0.0 };
    let weight = |i: usize| w.map_or(1.0, |w| f64::from(w.data[i]) + shift);
    Ok(x.map_last(|x| {
        let scale = (dot(x, x) / x.len() as f64 + eps).sqrt().recip();
        x.iter().enumerate().map(|(i, &v)| (f64::from(v) * scale * weight(i)) as f32).collect()
    }))
}

/// `y = w · (x − mean(x)) / √(var(x) + eps) + b`
pub(super) fn layer_norm(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, w, b, eps) = (args.tensor(0)?, args.optional(1)?, args.optional(2)?, args.float("eps"));
    let weight = |i: usize| w.map_or(1.0, |w| f64::from(w.data[i]));
    let bias = |i: usize| b.map_or(0.0, |b| f64::from(b.data[i]));
    Ok(x.map_last(|x| {
        let n = x.len() as f64;
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        let scale = (variance + eps).sqrt().recip();
        let normed = |(i, &v): (usize, &f32)| ((f64::from(v) - mean) * scale * weight(i) + bias(i)) as f32;
        x.iter().enumerate().map(normed).collect()
    }))
}

/// `y = x / √(Σ x² + eps)`
pub(super) fn l2_norm(args: &Args<'_>) -> Result<Tensor, Fault> {
    let (x, eps) = (args.tensor(0)?, args.float("eps"));
    Ok(x.map_last(|x| {
        let scale = (dot(x, x) + eps).sqrt().recip();
        x.iter().map(|&v| (f64::from(v) * scale) as f32).collect()
    }))
}
