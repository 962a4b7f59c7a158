//! Scalar functions that vectorise: no tables, no branches, the same bits at every level.

/// e^x to about 2 units in the last place; 0 below -104, infinity above 88.73.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < -105.0 { -105.0 } else { x };
    let clamped = if clamped > 89.0 { 89.0 } else { clamped };
    let shifted = clamped * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = (p * r) * r + r + 1.0;
    // Two factors, so that results down to the smallest subnormal and up to the largest finite number come out.
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let (half, rest) = (exponent >> 1, exponent.wrapping_sub(exponent >> 1));
    p * power_of_two(half) * power_of_two(rest)
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x * sigmoid(x).
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// tanh(x).
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // Near zero 1 - 2 / (e^2x + 1) cancels, so the odd series is used there.
    let square = x * x;
    let series = x + x
        * square
        * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0))));
    let direct = 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
    if square < 0.04 { series } else { direct }
}

/// GELU with the tanh approximation.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)))
}

/// GELU with the error function.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    0.5 * x * erfc(-x * std::f32::consts::FRAC_1_SQRT_2)
}

/// The complementary error function, relative error about 1e-6 (Chebyshev fit in 1 / (1 + z / 2)).
#[inline(always)]
fn erfc(x: f32) -> f32 {
    let z = x.abs();
    let t = 1.0 / (1.0 + 0.5 * z);
    let p = 0.170_872_77_f32;
    let p = p * t - 0.822_152_23;
    let p = p * t + 1.488_515_9;
    let p = p * t - 1.135_204;
    let p = p * t + 0.278_868_07;
    let p = p * t - 0.186_288_06;
    let p = p * t + 0.096_784_18;
    let p = p * t + 0.374_091_96;
    let p = p * t + 1.000_023_7;
    let p = p * t - 1.265_512_2;
    let tail = t * exp(p - z * z);
    if x >= 0.0 { tail } else { 2.0 - tail }
}

/// ln(1 + e^x); x itself above 20, where the difference is below half a unit in the last place.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { exp(x).ln_1p() }
}
