//! A plugin as it was built when the SDK was at 1.0: one layer of attention.

use metrale_plugin_api::prelude::*;

metrale_plugin_api::export_plugin!(Frozen);

/// The model.
pub struct Frozen {
    vocab: usize,
    hidden: usize,
    heads: usize,
    rope: Rope,
}

impl ModelLoader for Frozen {
    fn open(config: &Config) -> Result<Self> {
        let (hidden, heads) = (config.dim("hidden_size")?, config.dim("num_heads")?);
        let rope = Rope::from_config(config, hidden / heads)?;
        Ok(Self { vocab: config.dim("vocab_size")?, hidden, heads, rope })
    }

    fn describe(&self) -> ModelInfo {
        ModelInfo {
            num_layers: 1,
            hidden_size: self.hidden,
            vocab_size: self.vocab,
            context_length: 64,
            ..ModelInfo::default()
        }
    }

    fn embedding(&self, g: &Graph) -> Result<Value> {
        g.embedding(g.token_ids()?, g.weight("embed.weight", &[self.vocab, self.hidden], Role::Vocab)?)
    }

    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value> {
        let w = Weights::root(&["model"]).index("layers", index);
        let dim = self.hidden / self.heads;
        let h = g.rms_norm(x, g.weight(w.name("norm.weight"), &[self.hidden], Role::Replicated)?, 1e-6)?;
        let heads = |name: &str| -> Result<Value> {
            let weight = g.weight(w.name(name), &[self.hidden, self.hidden], Role::Column)?;
            g.heads(g.linear(h, weight)?, self.heads, dim)
        };
        let positions = g.positions()?;
        let q = g.rope(heads("q.weight")?, positions, &self.rope)?;
        let k = g.rope(heads("k.weight")?, positions, &self.rope)?;
        let v = heads("v.weight")?;
        let cache = g.kv_cache(&format!("layers.{index}.self"), &KvSpec::new(self.heads, dim))?;
        let cache = g.kv_write(cache, k, Some(v))?;
        let y = g.attention(q, cache, &Attention::causal((dim as f64).powf(-0.5)))?;
        let out = g.weight(w.name("o.weight"), &[self.hidden, self.hidden], Role::Row)?;
        g.add(x, g.linear(g.flatten(y)?, out)?)
    }

    fn norm(&self, g: &Graph, x: Value) -> Result<Value> {
        g.rms_norm(x, g.weight("norm.weight", &[self.hidden], Role::Replicated)?, 1e-6)
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        g.linear(x, g.weight("head.weight", &[self.vocab, self.hidden], Role::Vocab)?)
    }
}
