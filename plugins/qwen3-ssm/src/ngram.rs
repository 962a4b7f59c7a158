//! Per-layer embeddings of Qwen4-Exp: hashed n-grams look up what a gate and a short convolution add to the streams.

use metrale_plugin_api::prelude::*;

use crate::config::QwenConfig;

/// Under the root of the gate.
const MIN_GATE: f64 = 1e-6;

/// Where n-gram tables are, and their sizes.
#[derive(Clone, Debug)]
pub(crate) struct NgramConfig {
    /// Layers with a table, counted from 1.
    layers: Vec<usize>,
    /// Width of a table's rows.
    head_dim: usize,
    kernel: usize,
    /// Tensors that a table is stored in.
    shards: usize,
    tables: NgramTables,
}

impl NgramConfig {
    pub(crate) fn read(config: &Config) -> Result<Option<Self>> {
        let mut layers: Vec<usize> = config.optional("ple_layer_ids")?.unwrap_or_default();
        layers.sort_unstable();
        layers.dedup();
        if layers.is_empty() {
            return Ok(None);
        }
        let reset = match config.optional::<Vec<i64>>("eos_token_id") {
            Ok(list) => list.and_then(|list| list.first().copied()),
            Err(_) => config.optional("eos_token_id")?,
        };
        let tables = NgramTables {
            longest: config.dim_or("ngram_size", 3)?,
            heads_per_length: config.dim_or("heads_per_ngram", 8)?,
            first_size: config.dim_or("ngram_vocab_size_base", 20_000_000)?,
            pad_to: config.dim_or("make_ngram_vocab_size_divisible_by", 128)?,
            seed: config.optional("seed")?.unwrap_or(1234),
            vocab_size: config.dim("vocab_size")?,
            reset: reset.ok_or_else(|| PluginError::new("n-gram tables need `eos_token_id`"))?,
        };
        let head_dim = tables.head_dim(config.dim_or("ple_embed_dim", config.dim("hidden_size")?)?)?;
        let (kernel, shards) =
            (config.dim_or("ple_conv_kernel_size", 4)?, config.dim_or("split_ngram_parts", 512)?);
        Ok(Some(Self { layers, head_dim, kernel, shards, tables }))
    }
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
        let Some(index) = c.layers.iter().position(|&l| l == layer + 1) else { return Ok(x) };
        let (w, state, wide) = (&w.scope("ple"), format!("layers.{layer}.ngram"), streams * self.hidden_size);
        let (hash, rows) = c.tables.hash(index);

        let history = g.token_state(&format!("{state}.tokens"), c.tables.longest - 1)?;
        let entries = g.ngram_hash(g.token_ids()?, history, &hash)?;
        let table = w.scope("ple_embedding.ngram_embedding");
        let table = g.sharded_table(&table, c.shards, [rows, c.head_dim])?;
        let e = g.flatten(g.embedding(entries, table)?)?; // [T, width]
        let proj = |name: &str, out: usize| g.project(e, w, name, out, Role::Replicated);
        let shape = [streams, self.hidden_size];
        let normed = |name: &str, x: Value| g.grouped_rms_norm(x, w.name(name), shape, self.rms_norm_eps);
        let key = normed("norm_key.weight", proj("key_proj.weight", wide)?)?;
        let query = normed("norm_query.weight", x)?;
        let gate = g.scale(g.sum(g.mul(key, query)?, 2)?, (self.hidden_size as f64).powf(-0.5))?;
        let gate = g.reshape(g.sigmoid(g.signed_sqrt(gate, MIN_GATE)?)?, &[streams, 1])?;
        let value = self.to_streams(g, streams, proj("value_proj.weight", self.hidden_size)?)?;
        let value = g.flatten(g.mul(value, gate)?)?;

        let local = g.flatten(normed("norm_conv.weight", value)?)?;
        let local = g.short_conv(local, w, &format!("{state}.conv"), [c.kernel, c.tables.longest])?;
        g.add(x, g.add(value, local)?)
    }
}
