//! Fixed position vectors of the original transformer, in the order of fairseq: all sines, then all cosines.

use super::Cpu;
use super::elementwise::map_rows;
use crate::error::{Result, ensure_len, ensure_value};

/// `out[t] = [sin(p · fⱼ) | cos(p · fⱼ)]` with `p = positions[t] + offset`, `fⱼ = 10000^(−j / (half − 1))`,
/// `half = width / 2`; out is `[T, width]`. Angles are f64: at large positions an f32 one would be off by thousandths.
///
/// # Errors
/// The width is odd or below 4, or `out` has the wrong length.
pub fn sinusoid(cpu: &Cpu, positions: &[u32], width: usize, offset: usize, out: &mut [f32]) -> Result<()> {
    const OP: &str = "sinusoid";
    ensure_value(OP, "width", width, width >= 4 && width.is_multiple_of(2), "even, at least 4")?;
    ensure_len(OP, "out", out.len(), positions.len() * width)?;
    let step = 10_000_f64.ln() / (width as f64 / 2.0 - 1.0);
    map_rows(cpu, width, out, |t, out| {
        let position = f64::from(positions[t]) + offset as f64;
        let (sines, cosines) = out.split_at_mut(width / 2);
        for (j, (sine, cosine)) in sines.iter_mut().zip(cosines).enumerate() {
            let (sin, cos) = (position * (-(j as f64) * step).exp()).sin_cos();
            (*sine, *cosine) = (sin as f32, cos as f32);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frequency_is_one_and_the_last_a_ten_thousandth() {
        let mut out = [0.0; 16];
        sinusoid(&Cpu::new(1), &[0, 5], 8, 2, &mut out).unwrap();
        for (row, position) in out.chunks_exact(8).zip([2.0_f32, 7.0]) {
            for (found, expected) in [
                (row[0], position.sin()),
                (row[3], (position / 10_000.0).sin()),
                (row[4], position.cos()),
                (row[7], (position / 10_000.0).cos()),
            ] {
                assert!((found - expected).abs() < 1e-6, "{found} {expected}");
            }
        }
    }

    #[test]
    fn widths_without_two_halves_are_refused() {
        let refuse = |width| sinusoid(&Cpu::new(1), &[0], width, 0, &mut vec![0.0; width]).is_err();
        assert!(refuse(2) && refuse(5) && !refuse(4));
    }
}
