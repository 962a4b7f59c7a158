//! Random data, levels and comparisons.

use metrale_kernels::cpu::{Cpu, Isa};

/// xorshift64*.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) as usize) % n
    }

    /// Uniform in -1..1.
    pub(crate) fn unit(&mut self) -> f32 {
        ((self.next() >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    }

    pub(crate) fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }

    /// Mostly ordinary values, some large, tiny, zero.
    pub(crate) fn hard(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| {
                let v = self.unit();
                match self.below(16) {
                    0 => v * 1e3,
                    1 => v * 1e-6,
                    2 => 0.0,
                    3 => -0.0,
                    4 => v * 1e-39,
                    _ => v,
                }
            })
            .collect()
    }
}

/// A `Cpu` for every level and thread count that the machine has.
pub(crate) fn cpus(threads: &[usize]) -> Vec<Cpu> {
    let mut all = Vec::new();
    for isa in Isa::ALL {
        if !isa.is_supported() {
            eprintln!("!!! SKIPPED: this processor lacks {}, its kernels were not tested !!!", isa.name());
            continue;
        }
        all.extend(threads.iter().map(|&n| Cpu::with_isa(n, isa).unwrap()));
    }
    all
}

/// Fails unless |found - expected| <= tolerance for each element.
#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[f64], tolerance: impl Fn(usize) -> f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        let allowed = tolerance(i);
        assert!((f64::from(f) - e).abs() <= allowed, "{what}: element {i} is {f}, expected {e} +- {allowed}");
    }
}

/// Fails unless both have the same bits.
#[track_caller]
pub(crate) fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: length");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert_eq!(x.to_bits(), y.to_bits(), "{what}: element {i} is {x} and {y}");
    }
}

pub(crate) fn poisoned(len: usize) -> Vec<f32> {
    vec![f32::NAN; len]
}

pub(crate) const TOKENS: [usize; 7] = [1, 2, 3, 5, 8, 17, 64];
