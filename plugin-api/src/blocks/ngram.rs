//! Tables for hashed n-grams: several hashes per length, each with rows of its own in one table.

use crate::error::{PluginError, Result};
use crate::graph::{Graph, Weight};
use crate::ops::NgramHash;
use crate::weights::{Role, Weights};

/// Hashes of one model; more are a mistake in the file.
const MAX_HEADS: usize = 1024;

/// Sizes of the tables of one model; every layer with a table hashes differently.
#[derive(Clone, Copy, Debug)]
pub struct NgramTables {
    /// Tokens of the longest n-gram, at least 2; the shortest has 2.
    pub longest: usize,
    /// Hashes per length.
    pub heads_per_length: usize,
    /// Rows per hash are the primes from here on, at most 2³¹.
    pub first_size: usize,
    /// The rows of a layer's table are a multiple of this.
    pub pad_to: usize,
    /// Of the multipliers.
    pub seed: u64,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Token that ends a context.
    pub reset: i64,
}

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
/// Distance between the seeds of two layers.
const LAYER_STEP: u64 = 10_007;

impl NgramTables {
    /// Hashes of one n-gram of each length.
    #[must_use]
    pub fn num_heads(&self) -> usize {
        self.longest.saturating_sub(1).saturating_mul(self.heads_per_length)
    }

    /// Width of a table's rows: the heads share embeddings of `width`.
    ///
    /// # Errors
    /// They cannot share it evenly, or there are none or too many.
    #[track_caller]
    pub fn head_dim(&self, width: usize) -> Result<usize> {
        let heads = self.num_heads();
        if heads == 0 || heads > MAX_HEADS || !width.is_multiple_of(heads) {
            let expected = format!("expected 1 to {MAX_HEADS} that divide it");
            return Err(PluginError::new(format!(
                "{heads} n-gram heads for embeddings of {width}: {expected}"
            )));
        }
        Ok(width / heads)
    }

    /// How the `index`-th table is addressed, and its rows.
    #[must_use]
    pub fn hash(&self, index: usize) -> (NgramHash, usize) {
        let heads = self.num_heads();
        let moduli: Vec<usize> = primes_from(self.first_size).skip(index * heads).take(heads).collect();
        let offsets =
            moduli.iter().scan(0, |next, size| Some(std::mem::replace(next, *next + size))).collect();
        let half = (i64::MAX as u64 / self.vocab_size.max(1) as u64 / 2).max(1);
        let seed = self.seed.wrapping_add(LAYER_STEP.wrapping_mul(index as u64));
        let multiplier = |i| {
            let random = splitmix64(seed.wrapping_add(GOLDEN_GAMMA.wrapping_mul(i)));
            (2 * (random % half) + 1) as i64
        };
        let rows = moduli.iter().sum::<usize>().next_multiple_of(self.pad_to.max(1));
        let orders = (0..heads).map(|head| 2 + head / self.heads_per_length.max(1)).collect();
        let multipliers = (1..=self.longest as u64).map(multiplier).collect();
        (NgramHash { orders, multipliers, moduli, offsets, reset: self.reset }, rows)
    }
}

impl Graph {
    /// A table `[rows, width]`: the tensors `shard_0.weight`, `shard_1.weight`, …, of equal size but for the last, or `weight`.
    ///
    /// # Errors
    /// The host refuses a shape.
    #[track_caller]
    pub fn sharded_table(&self, w: &Weights, shards: usize, [rows, width]: [usize; 2]) -> Result<Weight> {
        let size = rows.div_ceil(shards.max(1)).max(1);
        let shard = |i: usize| {
            let shape = [size.min(rows - i * size), width];
            self.weight(w.name(&format!("shard_{i}.weight")), &shape, Role::Replicated)
        };
        let parts = (0..rows.div_ceil(size)).map(shard).collect::<Result<Vec<_>>>()?;
        let whole = self.weight(w.name("weight"), &[rows, width], Role::Replicated)?;
        self.first_of(&[self.weight_stack(&parts, 0)?, whole])
    }
}

/// Steele et al., 2014, "Fast splittable pseudorandom number generators".
fn splitmix64(seed: u64) -> u64 {
    let z = seed.wrapping_add(GOLDEN_GAMMA);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn primes_from(first: usize) -> impl Iterator<Item = usize> {
    (first.max(2)..).filter(|&n| !(2..=n.isqrt()).any(|d| n.is_multiple_of(d)))
}
