//! Passes over one row of the vocabulary: the cost of sampling. Written in lanes, so that the compiler vectorises them.

const LANES: usize = 16;

/// Index of the first value that is NaN or infinite.
pub(super) fn first_non_finite(values: &[f32]) -> Option<usize> {
    const EXPONENT: u32 = 0x7f80_0000;
    let not_finite = |v: &f32| v.to_bits() & EXPONENT == EXPONENT;
    // `any` would stop early, which the compiler cannot vectorise.
    let found = values.iter().fold(false, |found, v| found | not_finite(v));
    if found { values.iter().position(not_finite) } else { None }
}

/// The largest value; negative infinity for none. Values are not NaN.
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = if *v > *lane { *v } else { *lane };
        }
    }
    lanes.iter().chain(chunks.remainder()).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Sum of non-negative values, accurate enough for probabilities of a large vocabulary.
pub(super) fn sum(values: &[f32]) -> f64 {
    values.chunks(CHUNK).map(chunk_sum).sum()
}

/// Index at which the running sum of non-negative `weights` first exceeds `target`; the last positive weight if
/// rounding keeps the sum below. `None` if no weight is positive.
pub(super) fn search_cumulative(weights: &[f32], target: f64) -> Option<usize> {
    let mut before = 0.0;
    for (number, chunk) in weights.chunks(CHUNK).enumerate() {
        let after = before + chunk_sum(chunk);
        if after > target {
            let mut running = before;
            for (offset, &w) in chunk.iter().enumerate() {
                running += f64::from(w);
                if running > target && w > 0.0 {
                    return Some(number * CHUNK + offset);
                }
            }
            // The chunk's own sum was rounded up: its last positive weight is meant.
            if let Some(offset) = chunk.iter().rposition(|&w| w > 0.0) {
                return Some(number * CHUNK + offset);
            }
        }
        before = after;
    }
    weights.iter().rposition(|&w| w > 0.0)
}

const CHUNK: usize = 32 * LANES;

fn chunk_sum(chunk: &[f32]) -> f64 {
    let mut lanes = [0.0_f32; LANES];
    let mut parts = chunk.chunks_exact(LANES);
    for part in &mut parts {
        for (lane, v) in lanes.iter_mut().zip(part) {
            *lane += v;
        }
    }
    lanes.iter().chain(parts.remainder()).map(|&v| f64::from(v)).sum()
}

/// The `k`-th largest value (`k` at least 1), duplicates counted; negative infinity if fewer than `k` are greater
/// than that.
pub(super) fn kth_largest(values: &[f32], k: usize, scratch: &mut Vec<f32>) -> f32 {
    if k >= values.len() {
        return f32::NEG_INFINITY;
    }
    scratch.clear();
    let full = (2 * k).max(64);
    let mut threshold = f32::NEG_INFINITY;
    for &v in values {
        // A value equal to the threshold cannot change it: k values at least as large are known.
        if v > threshold {
            scratch.push(v);
            if scratch.len() == full {
                threshold = keep_largest(scratch, k);
            }
        }
    }
    if scratch.len() < k { f32::NEG_INFINITY } else { keep_largest(scratch, k) }
}

fn keep_largest(values: &mut Vec<f32>, k: usize) -> f32 {
    let (_, &mut kth, _) = values.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    values.truncate(k);
    kth
}

/// `e^x` for `x <= 0`, within 2 units in the last place; 0 below -87.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor series of e^r for |r| <= ln(2)/2.
    let tail = 1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0));
    let series = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * tail))));
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    if x > -87.0 { series * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize) -> Vec<f32> {
        (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 65536.0 - 128.0).collect()
    }

    #[test]
    fn exp_is_close_to_the_standard_one() {
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 3e-7, "exp({x}): relative error {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn the_kth_largest_counts_duplicates() {
        let mut scratch = Vec::new();
        assert_eq!(kth_largest(&[1.0, 3.0, 3.0, 2.0], 2, &mut scratch), 3.0);
        assert_eq!(kth_largest(&[1.0, 3.0, 3.0, 2.0], 3, &mut scratch), 2.0);
        assert_eq!(kth_largest(&[1.0, 3.0], 2, &mut scratch), f32::NEG_INFINITY);
        let values = noise(5000);
        let mut sorted = values.clone();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        for k in [1, 2, 63, 64, 65, 1000, 4999] {
            assert_eq!(kth_largest(&values, k, &mut scratch), sorted[k - 1]);
        }
    }

    #[test]
    fn a_non_finite_value_is_found_anywhere() {
        let mut values = noise(1000);
        assert_eq!(first_non_finite(&values), None);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            values[777] = bad;
            assert_eq!(first_non_finite(&values), Some(777));
        }
    }

    #[test]
    fn the_cumulative_search_never_lands_on_a_zero_weight() {
        let weights: Vec<f32> = (0..3000).map(|i| if i % 7 == 3 { 0.25 } else { 0.0 }).collect();
        let total = sum(&weights);
        for step in 0..=1000 {
            let index = search_cumulative(&weights, total * f64::from(step) / 1000.0).unwrap();
            assert_eq!(index % 7, 3);
        }
        assert_eq!(search_cumulative(&[0.0; 5], 0.0), None);
    }
}
