//! Rotary and sinusoidal positions.

use crate::attr::Attrs;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::rope::Rope;

/// Which dimensions of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RotaryStyle {
    /// Dimension `j` with `j + R/2` (GPT-NeoX, Llama).
    #[default]
    Half,
    /// Dimension `2j` with `2j + 1` (GPT-J, DeepSeek).
    Interleaved,
}

impl Graph {
    /// Rotates the first `R = 2 · rope.inv_freq.len()` dimensions of every head of `x: [T, heads, dim]`; the rest passes through.
    #[track_caller]
    pub fn rope(&self, x: Value, positions: Value, rope: &Rope) -> Result<Value> {
        let inv_freq = self.constant(&rope.inv_freq)?;
        self.rope_with(x, positions, inv_freq, rope)
    }

    /// [`Graph::rope`] with inverse frequencies that are a value of the graph, for example from a tensor. `[R/2]`
    #[track_caller]
    pub fn rope_with(&self, x: Value, positions: Value, inv_freq: Value, rope: &Rope) -> Result<Value> {
        let style = match rope.style {
            RotaryStyle::Half => "half",
            RotaryStyle::Interleaved => "interleaved",
        };
        let mut attrs = Attrs::new().with("style", style).with("attention_factor", rope.attention_factor);
        if !rope.sections.is_empty() {
            let layout = if rope.blocked_sections { "blocked" } else { "interleaved" };
            attrs = attrs.with("sections", &rope.sections[..]).with("section_layout", layout);
        }
        self.op1("rope/1", &[x.0, positions.0, inv_freq.0], &attrs)
    }

    /// Fixed sinusoids of `positions + offset`: `[T]` gives `[T, width]`, sines in the first half, cosines in the second;
    /// frequency `j` of `half = width / 2` is `10000^(−j / (half − 1))` (fairseq).
    #[track_caller]
    pub fn sinusoid(&self, positions: Value, width: usize, offset: usize) -> Result<Value> {
        self.op1("sinusoid/1", &[positions.0], &Attrs::new().with("width", width).with("offset", offset))
    }
}
