//! The trait that authors implement, and how its methods become the entry points of a model.

use crate::attr::AttrValue;
use crate::config::Config;
use crate::error::{PluginError, Result};
use crate::graph::{Graph, Value};

/// What the core needs to know about a model besides its graphs. Reaches the core as `info/1` attributes.
#[derive(Clone, Debug, Default)]
pub struct ModelInfo {
    /// Decoder layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Logits per row.
    pub vocab_size: usize,
    /// Longest context the model was made for.
    pub context_length: usize,
    /// MTP depths with weights of their own; 0 without an MTP head.
    pub mtp_layers: usize,
    /// Whether MTP depths have output heads of their own; else they share the trunk's.
    pub has_mtp_head: bool,
    /// Whether there is an encoder.
    pub has_encoder: bool,
    /// Whether there is a vision tower.
    pub has_vision: bool,
    /// More facts: generation defaults, translation tables, chat formats. Keys are listed in op-set.md under `info/1`.
    pub extra: Vec<(String, AttrValue)>,
}

impl ModelInfo {
    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<AttrValue>) -> Self {
        self.extra.push((key.to_owned(), value.into()));
        self
    }

    fn attrs(&self) -> Vec<(String, AttrValue)> {
        let mut attrs: Vec<(String, AttrValue)> = [
            ("num_layers", self.num_layers.into()),
            ("hidden_size", self.hidden_size.into()),
            ("vocab_size", self.vocab_size.into()),
            ("context_length", self.context_length.into()),
            ("mtp_layers", self.mtp_layers.into()),
            ("has_mtp_head", self.has_mtp_head.into()),
            ("has_encoder", self.has_encoder.into()),
            ("has_vision", self.has_vision.into()),
        ]
        .into_iter()
        .map(|(k, v): (&str, AttrValue)| (k.to_owned(), v))
        .collect();
        attrs.extend(self.extra.iter().cloned());
        attrs
    }
}

/// What one MTP depth produces.
#[derive(Clone, Copy, Debug)]
pub struct Mtp {
    /// Hidden state that the next draft step is fed with, `[T, hidden_size]`.
    pub recycle: Value,
    /// What the head turns into logits, `[T, hidden_size]`.
    pub head_in: Value,
}

/// A model family: reads a configuration, then describes each entry point once.
///
/// Nothing of the plugin runs after that.
pub trait ModelLoader: Send + Sync + Sized + 'static {
    /// Reads the configuration. No files, no devices.
    ///
    /// # Errors
    /// Values that are missing, of the wrong type or make no sense.
    fn open(config: &Config) -> Result<Self>;

    /// What the core needs to know.
    fn describe(&self) -> ModelInfo;

    /// Token ids to the residual stream, `[T, hidden_size]`.
    fn embedding(&self, g: &Graph) -> Result<Value>;

    /// One decoder layer.
    fn layer(&self, g: &Graph, index: usize, x: Value) -> Result<Value>;

    /// The final norm.
    fn norm(&self, g: &Graph, x: Value) -> Result<Value>;

    /// Normed hidden states to logits, `[T, vocab_size]`.
    fn lm_head(&self, g: &Graph, x: Value) -> Result<Value>;

    /// Draft depth `depth`: `hidden` of slot i is the trunk's normed output (or the previous depth's `recycle`),
    /// `next_ids` the token after it.
    fn mtp(&self, g: &Graph, depth: usize, hidden: Value, next_ids: Value) -> Result<Mtp> {
        let _ = (depth, hidden, next_ids);
        Err(g.unsupported("mtp"))
    }

    /// What the head of draft depth `depth` makes of its [`Mtp::head_in`]: logits, `[T, vocab_size]`.
    fn mtp_head(&self, g: &Graph, depth: usize, x: Value) -> Result<Value> {
        let _ = (depth, x);
        Err(g.unsupported("mtp_head"))
    }

    /// Source tokens to cross-attention caches; returns the encoder's hidden states, `[S, hidden_size]`.
    fn encoder(&self, g: &Graph) -> Result<Value> {
        Err(g.unsupported("encoder"))
    }

    /// Patches to embedding rows.
    fn vision_tower(&self, g: &Graph) -> Result<Value> {
        Err(g.unsupported("vision"))
    }
}

/// Traces one entry point of a model.
pub(crate) fn trace<L: ModelLoader>(model: &L, g: &Graph, entry: &str, index: usize) -> Result<()> {
    let info = model.describe();
    match entry {
        "info" => g.info(&info.attrs()),
        "text" => {
            let mut x = model.embedding(g)?;
            g.tap("hidden", 0, x)?;
            for layer in 0..info.num_layers {
                g.enter_layer(Some(layer))?;
                x = model.layer(g, layer, x)?;
                g.tap("hidden", layer + 1, x)?;
            }
            g.enter_layer(None)?;
            let hidden = model.norm(g, x)?;
            g.output("final_hidden", hidden)
        }
        "lm_head" => {
            let x = g.input("hidden", Some(info.hidden_size))?;
            let logits = model.lm_head(g, x)?;
            g.output("logits", logits)
        }
        "mtp" => {
            let hidden = g.input("hidden", Some(info.hidden_size))?;
            let next_ids = g.input("next_ids", None)?;
            let mtp = model.mtp(g, index, hidden, next_ids)?;
            g.output("recycle", mtp.recycle)?;
            g.output("head_in", mtp.head_in)
        }
        "mtp_head" => {
            let x = g.input("hidden", Some(info.hidden_size))?;
            let logits = model.mtp_head(g, index, x)?;
            g.output("logits", logits)
        }
        "encoder" => {
            let hidden = model.encoder(g)?;
            g.output("encoder_hidden", hidden)
        }
        "vision" => {
            let rows = model.vision_tower(g)?;
            g.output("rows", rows)
        }
        other => Err(PluginError::new(format!("this SDK does not know the entry point `{other}`"))),
    }
}
