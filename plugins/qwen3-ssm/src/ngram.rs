//! Per-layer embeddings of Qwen4-Exp: hashed n-grams look up what a gate and a short convolution add to the streams.

use metrale_plugin_api::prelude::*;

use crate::config::QwenConfig;

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
/// Distance between the hash seeds of two layers.
const LAYER_STEP: u64 = 10_007;
/// Under the root of the gate.
const MIN_GATE: f64 = 1e-6;
/// Tables of up to 2³¹ rows have primes that trial division finds quickly.
const MAX_HEADS: usize = 1024;

/// Where n-gram tables are, and their sizes.
#[derive(Clone, Debug)]
pub(crate) struct NgramConfig {
    /// Layers with a table, counted from 1.
    layers: Vec<usize>,
    width: usize,
    kernel: usize,
    longest: usize,
    heads_per_order: usize,
    first_size: usize,
    pad_to: usize,
    seed: u64,
    shards: usize,
    end_of_text: i64,
}

impl NgramConfig {
    pub(crate) fn read(config: &Config) -> Result<Option<Self>> {
        let layers: Vec<usize> = config.optional("ple_layer_ids")?.unwrap_or_default();
        if layers.is_empty() {
            return Ok(None);
        }
        let eos = match config.optional::<Vec<i64>>("eos_token_id") {
            Ok(list) => list.and_then(|list| list.first().copied()),
            Err(_) => config.optional("eos_token_id")?,
        };
        let this = Self {
            layers,
            width: config.dim_or("ple_embed_dim", config.dim("hidden_size")?)?,
            kernel: config.dim_or("ple_conv_kernel_size", 4)?,
            longest: config.dim_or("ngram_size", 3)?,
            heads_per_order: config.dim_or("heads_per_ngram", 8)?,
            first_size: config.dim_or("ngram_vocab_size_base", 20_000_000)?,
            pad_to: config.dim_or("make_ngram_vocab_size_divisible_by", 128)?,
            seed: config.optional("seed")?.unwrap_or(1234),
            shards: config.dim_or("split_ngram_parts", 512)?,
            end_of_text: eos.ok_or_else(|| PluginError::new("n-gram tables need `eos_token_id`"))?,
        };
        let heads = this.longest.saturating_sub(1).saturating_mul(this.heads_per_order);
        if heads == 0 || heads > MAX_HEADS || !this.width.is_multiple_of(heads) {
            let message = format!(
                "{heads} n-gram heads for embeddings of {}: expected 1 to {MAX_HEADS} that divide it",
                this.width
            );
            return Err(PluginError::new(message));
        }
        Ok(Some(this))
    }

    /// How the table of the `index`-th such layer is addressed, and its rows.
    fn hash(&self, index: usize, vocab_size: usize) -> (NgramHash, usize) {
        let heads = (self.longest - 1) * self.heads_per_order;
        let moduli: Vec<usize> = primes_from(self.first_size).skip(index * heads).take(heads).collect();
        let offsets =
            moduli.iter().scan(0, |next, size| Some(std::mem::replace(next, *next + size))).collect();
        let half = (i64::MAX as u64 / vocab_size as u64 / 2).max(1);
        let seed = self.seed.wrapping_add(LAYER_STEP.wrapping_mul(index as u64));
        let multiplier = |i| {
            let random = splitmix64(seed.wrapping_add(GOLDEN_GAMMA.wrapping_mul(i)));
            (2 * (random % half) + 1) as i64
        };
        let rows = moduli.iter().sum::<usize>().next_multiple_of(self.pad_to);
        let orders = (0..heads).map(|head| 2 + head / self.heads_per_order).collect();
        let multipliers = (1..=self.longest as u64).map(multiplier).collect();
        (NgramHash { orders, multipliers, moduli, offsets, reset: self.end_of_text }, rows)
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
    let divides = |n: usize| move |d: &usize| n.is_multiple_of(*d);
    (first.max(2)..).filter(move |&n| !(2..=n.isqrt()).any(|d| divides(n)(&d)))
}

impl QwenConfig {
    /// What the n-grams that end at each row add to `x: [T, streams · hidden]`, on the layers that have a table.
    pub(crate) fn ngram_embedding(
        &self,
        g: &Graph,
        w: &Weights,
        (layer, streams): (usize, usize),
        x: Value,
    ) -> Result<Value> {
        let Some(c) = &self.ngram else { return Ok(x) };
        let mut layers = c.layers.clone();
        layers.sort_unstable();
        layers.dedup();
        let Some(index) = layers.iter().position(|&l| l == layer + 1) else { return Ok(x) };
        let (w, state, wide) = (&w.scope("ple"), format!("layers.{layer}.ngram"), streams * self.hidden_size);
        let (hash, rows) = c.hash(index, self.vocab_size);
        let head_dim = c.width / hash.orders.len();

        let history = g.token_state(&format!("{state}.tokens"), c.longest - 1)?;
        let entries = g.ngram_hash(g.token_ids()?, history, &hash)?;
        let e = g.flatten(g.embedding(entries, self.table(g, w, c.shards, [rows, head_dim])?)?)?; // [T, width]
        let proj =
            |name: &str, out: usize| g.linear(e, g.weight(w.name(name), &[out, c.width], Role::Replicated)?);
        let normed = |name: &str, x: Value| self.norm_streams(g, w.name(name), streams, x);
        let key = normed("norm_key.weight", proj("key_proj.weight", wide)?)?;
        let query = normed("norm_query.weight", x)?;
        let gate = g.scale(g.sum(g.mul(key, query)?, 2)?, (self.hidden_size as f64).powf(-0.5))?;
        let gate = g.reshape(g.sigmoid(g.signed_sqrt(gate, MIN_GATE)?)?, &[streams, 1])?;
        let value = self.to_streams(g, streams, proj("value_proj.weight", self.hidden_size)?)?;
        let value = g.flatten(g.mul(value, gate)?)?;

        let filter = g.weight(w.name("conv1d.weight"), &[wide, 1, c.kernel], Role::Replicated)?;
        let filter = g.weight_reshape(filter, &[wide, c.kernel])?;
        let history = g.conv_state(&format!("{state}.conv"), wide, (c.kernel - 1) * c.longest + 1)?;
        let local = g.flatten(normed("norm_conv.weight", value)?)?;
        let local = g.dilated_conv1d(local, filter, history, Activation::Silu, c.longest)?;
        g.add(x, g.add(value, local)?)
    }

    /// A table in as many files' worth of rows as it was cut into, or whole.
    fn table(&self, g: &Graph, w: &Weights, shards: usize, [rows, width]: [usize; 2]) -> Result<Weight> {
        let w = &w.scope("ple_embedding.ngram_embedding");
        let whole = g.weight(w.name("weight"), &[rows, width], Role::Replicated)?;
        let size = rows.div_ceil(shards);
        let shard = |i: usize| {
            let rows = size.min(rows - i * size);
            g.weight(w.name(&format!("shard_{i}.weight")), &[rows, width], Role::Replicated)
        };
        let parts = (0..rows.div_ceil(size)).map(shard).collect::<Result<Vec<_>>>()?;
        g.first_of(&[g.weight_stack(&parts, 0)?, whole])
    }
}
