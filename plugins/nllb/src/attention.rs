//! Multi-head attention in its three uses: within the source, within the target, from target to source.

use metrale_plugin_api::prelude::*;

use crate::config::NllbConfig;
use crate::linear;

impl NllbConfig {
    /// Every source token sees every other, `h: [S, d_model]`.
    pub(crate) fn bidirectional_attention(&self, g: &Graph, w: &Weights, h: Value) -> Result<Value> {
        let heads = self.encoder.num_heads;
        let q = self.heads_of(g, w, "q_proj", heads, h)?;
        let k = self.heads_of(g, w, "k_proj", heads, h)?;
        let v = self.heads_of(g, w, "v_proj", heads, h)?;
        let y = g.attention_local(q, k, v, &Attention::full(self.scale(heads)))?;
        self.out_proj(g, w, y)
    }

    /// A target token sees itself and what came before, `h: [T, d_model]`.
    pub(crate) fn self_attention(&self, g: &Graph, w: &Weights, layer: usize, h: Value) -> Result<Value> {
        let heads = self.decoder.num_heads;
        let q = self.heads_of(g, w, "q_proj", heads, h)?;
        let k = self.heads_of(g, w, "k_proj", heads, h)?;
        let v = self.heads_of(g, w, "v_proj", heads, h)?;
        let cache = g.kv_cache(&format!("layers.{layer}.self"), &self.kv())?;
        let cache = g.kv_write(cache, k, Some(v))?;
        let y = g.attention(q, cache, &Attention::causal(self.scale(heads)))?;
        self.out_proj(g, w, y)
    }

    /// A target token sees the whole source, `h: [T, d_model]`.
    pub(crate) fn cross_attention(&self, g: &Graph, w: &Weights, layer: usize, h: Value) -> Result<Value> {
        let heads = self.decoder.num_heads;
        let q = self.heads_of(g, w, "q_proj", heads, h)?;
        let y = g.attention(q, self.cross_cache(g, layer)?, &Attention::full(self.scale(heads)))?;
        self.out_proj(g, w, y)
    }

    /// What a decoder layer's cross-attention reads, from the encoder's output `[S, d_model]`.
    pub(crate) fn write_cross_cache(
        &self,
        g: &Graph,
        w: &Weights,
        layer: usize,
        hidden: Value,
    ) -> Result<State> {
        let heads = self.decoder.num_heads;
        let k = self.heads_of(g, w, "k_proj", heads, hidden)?;
        let v = self.heads_of(g, w, "v_proj", heads, hidden)?;
        g.kv_write(self.cross_cache(g, layer)?, k, Some(v))
    }

    fn cross_cache(&self, g: &Graph, layer: usize) -> Result<State> {
        g.cross_cache(&format!("layers.{layer}.cross"), &self.kv())
    }

    fn kv(&self) -> KvSpec {
        KvSpec::new(self.decoder.num_heads, self.d_model / self.decoder.num_heads)
    }

    fn scale(&self, heads: usize) -> f64 {
        ((self.d_model / heads) as f64).powf(-0.5)
    }

    fn heads_of(&self, g: &Graph, w: &Weights, name: &str, heads: usize, h: Value) -> Result<Value> {
        let y = linear(g, w, name, [self.d_model; 2], Role::Column, h)?;
        g.heads(y, heads, self.d_model / heads)
    }

    fn out_proj(&self, g: &Graph, w: &Weights, y: Value) -> Result<Value> {
        linear(g, w, "out_proj", [self.d_model; 2], Role::Row, g.flatten(y)?)
    }
}
