//! The smallest model: an embedding, and a head that is the same table.

use metrale_plugin_api::prelude::*;

/// The model. `LAYERS` tells plugins that share it apart.
pub struct Tiny<const LAYERS: usize> {
    vocab: usize,
    hidden: usize,
}

impl<const LAYERS: usize> Tiny<LAYERS> {
    fn table(&self, g: &Graph) -> Result<Weight> {
        g.weight("table.weight", &[self.vocab, self.hidden], Role::Vocab)
    }
}

impl<const LAYERS: usize> ModelLoader for Tiny<LAYERS> {
    fn open(config: &Config) -> Result<Self> {
        Ok(Self { vocab: config.dim("vocab_size")?, hidden: config.dim("hidden_size")? })
    }

    fn describe(&self) -> ModelInfo {
        ModelInfo {
            num_layers: LAYERS,
            hidden_size: self.hidden,
            vocab_size: self.vocab,
            context_length: 64,
            ..ModelInfo::default()
        }
    }

    fn embedding(&self, g: &Graph) -> Result<Value> {
        g.embedding(g.token_ids()?, self.table(g)?)
    }

    fn layer(&self, g: &Graph, _index: usize, x: Value) -> Result<Value> {
        g.scale(x, 0.5)
    }

    fn norm(&self, _: &Graph, x: Value) -> Result<Value> {
        Ok(x)
    }

    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value> {
        g.linear(x, self.table(g)?)
    }
}
