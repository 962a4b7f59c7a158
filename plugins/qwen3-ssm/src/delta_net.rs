//! Gated delta net (Yang et al., 2024): a linear-attention layer whose state decays and is corrected towards each new value.

use metrale_plugin_api::prelude::*;

use crate::config::QwenConfig;

/// Under the root of the query and key norms.
const L2_NORM_EPS: f64 = 1e-6;

impl QwenConfig {
    /// `x: [T, hidden]` after the input norm; returns the same shape.
    pub(crate) fn delta_net(&self, g: &Graph, w: &Weights, state: &str, x: Value) -> Result<Value> {
        let (key_heads, value_heads) = (self.linear_num_key_heads, self.linear_num_value_heads);
        let (dk, dv) = (self.linear_key_head_dim, self.linear_value_head_dim);
        let (keys, values) = (key_heads * dk, value_heads * dv);
        let [qkv, z, b, a] = self.project(g, w, x)?;

        let qkv = g.short_conv(qkv, w, &format!("{state}.conv"), [self.linear_conv_kernel_dim, 1])?;
        let [q, k, v] = g.split(qkv, 1, [keys, keys, values])?;
        let q = g.l2_norm(g.heads(q, key_heads, dk)?, L2_NORM_EPS)?;
        let q = g.scale(q, (dk as f64).powf(-0.5))?;
        let k = g.l2_norm(g.heads(k, key_heads, dk)?, L2_NORM_EPS)?;
        let v = g.heads(v, value_heads, dv)?;

        let per_head = |name: &str| g.weight(w.name(name), &[value_heads], Role::Column);
        let rate = g.weight_neg_exp(per_head("A_log")?)?;
        let decay = g.mul(g.softplus(g.add(a, per_head("dt_bias")?)?)?, rate)?;
        let beta = g.sigmoid(b)?;
        let memory = g.recurrent_state(&format!("{state}.delta"), &[value_heads, dk, dv])?;
        let o = g.gated_delta_rule([q, k, v], decay, beta, memory)?; // [T, value_heads, dv]

        // This norm's weights are stored as they are, and it comes before the gate.
        let o =
            g.rms_norm(o, g.weight(w.name("norm.weight"), &[dv], Role::Replicated)?, self.rms_norm_eps)?;
        let gate = if self.sigmoid_gate { g.sigmoid(z)? } else { g.silu(z)? };
        let o = g.flatten(g.mul(o, gate)?)?;
        g.project(o, w, "out_proj.weight", self.hidden_size, Role::Row)
    }

    /// Input of the convolution (queries, keys and values) `[T, channels]`, output gate `[T, value_heads, dv]`, write strength
    /// before the sigmoid and decay before softplus, `[T, value_heads]` each. Qwen3-Next interleaves the projections by key head: `[q | k | v | z]` and `[b | a]` per head.
    fn project(&self, g: &Graph, w: &Weights, x: Value) -> Result<[Value; 4]> {
        let (key_heads, value_heads) = (self.linear_num_key_heads, self.linear_num_value_heads);
        let (dk, dv) = (self.linear_key_head_dim, self.linear_value_head_dim);
        let proj = |name: &str, width: usize| g.project(x, w, name, width, Role::Column);
        if !self.interleaved {
            return Ok([
                proj("in_proj_qkv.weight", 2 * key_heads * dk + value_heads * dv)?,
                g.heads(proj("in_proj_z.weight", value_heads * dv)?, value_heads, dv)?,
                proj("in_proj_b.weight", value_heads)?,
                proj("in_proj_a.weight", value_heads)?,
            ]);
        }
        let group = value_heads / key_heads;
        let per_head = |name: &str, width: usize| g.heads(proj(name, key_heads * width)?, key_heads, width);
        let qkvz = per_head("in_proj_qkvz.weight", 2 * dk + 2 * group * dv)?;
        let [q, k, v, z] = g.split(qkvz, 2, [dk, dk, group * dv, group * dv])?;
        let [b, a] = g.split(per_head("in_proj_ba.weight", 2 * group)?, 2, [group, group])?;
        Ok([
            g.concat(&[g.flatten(q)?, g.flatten(k)?, g.flatten(v)?], 1)?,
            g.reshape(z, &[value_heads, dv])?,
            g.flatten(b)?,
            g.flatten(a)?,
        ])
    }
}
