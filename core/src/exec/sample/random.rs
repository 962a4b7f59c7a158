//! The randomness of one request: a function of its seed and the token's index, and of nothing else.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Words that one `ChaCha` block yields; every token index owns one block.
const WORDS_PER_BLOCK: u128 = 16;

/// Uniform in [0, 1), for the token at `position` of a sequence with this seed.
pub(super) fn uniform(seed: u64, position: usize) -> f64 {
    (generator(seed, position).next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A seed for the `number`-th request that brings none, drawn from the engine's own.
#[must_use]
pub fn derive_seed(engine_seed: u64, number: u64) -> u64 {
    generator(engine_seed, number as usize).next_u64()
}

fn generator(seed: u64, block: usize) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_word_pos(block as u128 * WORDS_PER_BLOCK);
    rng
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_depends_on_seed_and_position_only() {
        assert_eq!(uniform(1, 2), uniform(1, 2));
        assert_ne!(uniform(1, 2), uniform(1, 3));
        assert_ne!(uniform(1, 2), uniform(2, 2));
    }

    #[test]
    fn draws_are_uniform() {
        let mut buckets = [0_u32; 16];
        for position in 0..16_000 {
            buckets[(uniform(42, position) * 16.0) as usize] += 1;
        }
        let chi_square: f64 = buckets.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        // 15 degrees of freedom: 37.7 is exceeded once in a thousand.
        assert!(chi_square < 37.7, "{chi_square}");
    }
}
