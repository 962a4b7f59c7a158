//! Hyper-connections (Zhu et al., 2024) as Qwen4-Exp gates them: the residual is several streams, of which each block reads a
//! mixture and to which it adds its output with weights that depend on the input.

use metrale_plugin_api::prelude::*;

use crate::config::QwenConfig;

/// The residual streams, side by side: `[T, streams · hidden]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyperConnections {
    pub(crate) streams: usize,
    /// Inner width of the matrix that mixes streams.
    rank: usize,
}

impl HyperConnections {
    pub(crate) fn read(config: &Config) -> Result<Self> {
        Ok(Self { streams: config.dim_or("hc_count", 4)?, rank: config.dim_or("hc_lowrank", 320)? })
    }
}

impl QwenConfig {
    /// What a block reads of `x: [T, streams · hidden]`, `[T, hidden]`, and the normed streams.
    pub(crate) fn mix_streams(
        &self,
        g: &Graph,
        w: &Weights,
        hc: HyperConnections,
        x: Value,
    ) -> Result<(Value, Value)> {
        let (streams, width) = (hc.streams, hc.streams * self.hidden_size);
        let shape = [streams, self.hidden_size];
        let normed = g.grouped_rms_norm(x, w.name("hc_norm.weight"), shape, self.rms_norm_eps)?;
        let flat = g.flatten(normed)?;
        let down = g.project(flat, w, "input_mix_weight_down.weight", hc.rank, Role::Replicated)?;
        let gate = g.silu(g.scale(down, 1.0 / streams as f64)?)?;
        let gate = g.project(gate, w, "input_mix_weight_up.weight", width, Role::Replicated)?;
        let gate = g.reshape(g.sigmoid(gate)?, &shape)?;
        Ok((g.mean(g.mul(gate, normed)?, 1)?, flat))
    }

    /// `x + weight ∘ block(mixture of x)`, a weight from 0 to 2 per stream.
    pub(crate) fn hyper_connect(
        &self,
        g: &Graph,
        w: &Weights,
        hc: HyperConnections,
        x: Value,
        block: impl FnOnce(Value) -> Result<Value>,
    ) -> Result<Value> {
        let (input, normed) = self.mix_streams(g, w, hc, x)?;
        let inject = g.project(normed, w, "block_inject_weight.weight", hc.streams, Role::Replicated)?;
        let inject = g.sigmoid(g.scale(inject, 1.0 / hc.streams as f64)?)?;
        let inject = g.reshape(g.scale(inject, 2.0)?, &[hc.streams, 1])?;
        let y = self.to_streams(g, hc.streams, block(input)?)?;
        g.add(x, g.flatten(g.mul(y, inject)?)?)
    }

    /// `[T, hidden]` in every stream: `[T, streams, hidden]`.
    pub(crate) fn to_streams(&self, g: &Graph, streams: usize, x: Value) -> Result<Value> {
        g.repeat(g.reshape(x, &[1, self.hidden_size])?, 1, streams)
    }
}
