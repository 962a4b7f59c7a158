//! A vision tower: a transformer over the patches of each image, whose output rows stand for blocks of patches.

use crate::attr::AttrValue;
use crate::prelude::*;

const LAYER_NORM_EPS: f64 = 1e-6;
/// A larger side is a mistake in the file.
const MAX_PATCH: usize = 1024;

/// A pre-norm transformer with learnt, interpolated positions and rotation by row and column, and what it is fed with: keys of
/// `vision_config` and preprocessor_config.json, tensors `patch_embed`, `pos_embed`, `blocks` and `merger`.
#[derive(Clone, Debug)]
pub struct VisionTower {
    depth: usize,
    hidden: usize,
    intermediate: usize,
    heads: usize,
    /// Channels, frames, rows and columns of a patch.
    patch: [usize; 4],
    /// Patches of a block along each side.
    merge: usize,
    /// Positions along each side of the learnt table.
    side: usize,
    out: usize,
    image_token: usize,
    pixels: [usize; 2],
    mean: Vec<f64>,
    std: Vec<f64>,
}

impl VisionTower {
    /// Reads `vision_config` and preprocessor_config.json, if there is a tower; `out` is the width of the decoder.
    ///
    /// # Errors
    /// Keys that are missing or make no sense, or a tower for another decoder.
    pub fn read(top: &Config, out: usize) -> Result<Option<Self>> {
        let Some(config) = top.section("vision_config")? else { return Ok(None) };
        let preprocessor = top.preprocessor();
        let size = preprocessor.section("size")?.unwrap_or_else(Config::empty);
        let pixels = |key: &str, edge: &str, default: usize| -> Result<usize> {
            let top_level = preprocessor.optional(key)?;
            Ok(top_level.or(size.optional(edge)?).unwrap_or(default))
        };
        let side = config.dim_or("num_position_embeddings", 2304)?.isqrt();
        let this = Self {
            depth: config.dim("depth")?,
            hidden: config.dim("hidden_size")?,
            intermediate: config.dim("intermediate_size")?,
            heads: config.dim("num_heads")?,
            patch: [
                config.dim_or("in_channels", 3)?,
                config.dim_or("temporal_patch_size", 2)?,
                config.dim_or("patch_size", 16)?,
                config.dim_or("patch_size", 16)?,
            ],
            merge: config.dim_or("spatial_merge_size", 2)?,
            side,
            out: config.dim_or("out_hidden_size", out)?,
            image_token: top.optional("image_token_id")?.unwrap_or(248_056),
            pixels: [
                pixels("min_pixels", "shortest_edge", 65_536)?,
                pixels("max_pixels", "longest_edge", 16_777_216)?,
            ],
            mean: preprocessor.optional("image_mean")?.unwrap_or_else(|| vec![0.5; 3]),
            std: preprocessor.optional("image_std")?.unwrap_or_else(|| vec![0.5; 3]),
        };
        let stacked = config.optional::<Vec<usize>>("deepstack_visual_indexes")?.unwrap_or_default();
        let wrong = [
            (
                this.out != out,
                format!("out_hidden_size {}; expected {out}, the width of the decoder", this.out),
            ),
            (
                !this.hidden.is_multiple_of(4 * this.heads),
                format!("{} heads over {}; expected a multiple of 4 each", this.heads, this.hidden),
            ),
            (!stacked.is_empty(), format!("deepstack_visual_indexes {stacked:?}; expected none")),
            (this.patch.iter().any(|&n| n > MAX_PATCH), format!("patches of {:?}", this.patch)),
        ];
        match wrong.into_iter().find(|(wrong, _)| *wrong) {
            Some((_, what)) => Err(PluginError::new(format!("`vision_config` has {what}"))),
            None => Ok(Some(this)),
        }
    }

    /// What the core needs to know to make patches of images and rows of text.
    #[must_use]
    pub fn describe(&self, info: ModelInfo) -> ModelInfo {
        ModelInfo { has_vision: true, ..info }
            .with("vision.attention", "frame")
            .with("vision.image_token_id", self.image_token)
            .with("vision.patch_size", self.patch[2])
            .with("vision.temporal_patch_size", self.patch[1])
            .with("vision.merge_size", self.merge)
            .with("vision.min_pixels", self.pixels[0])
            .with("vision.max_pixels", self.pixels[1])
            .with("vision.mean", AttrValue::Floats(self.mean.clone()))
            .with("vision.std", AttrValue::Floats(self.std.clone()))
    }

    /// Patches `[P, channels · frames · rows · columns]`, block by block, to embeddings `[P / merge², hidden]`.
    ///
    /// # Errors
    /// The host refuses an op.
    pub fn rows(&self, g: &Graph, w: &Weights) -> Result<Value> {
        let width = self.hidden;
        let pixels = g.pixels(self.patch.iter().product())?;
        let [channels, frames, rows, columns] = self.patch;
        let filter = w.name("patch_embed.proj.weight");
        let filter = g.weight(filter, &[width, channels, frames, rows, columns], Role::Replicated)?;
        let filter = g.weight_reshape(filter, &[width, self.patch.iter().product()])?;
        let x = g.linear_bias(pixels, filter, Some(vector(g, w, "patch_embed.proj.bias", width)?))?;

        let table =
            g.weight(w.name("pos_embed.weight"), &[self.side * self.side, width], Role::Replicated)?;
        let mut x = g.add(x, g.interpolated_positions(table, self.side)?)?;
        for block in 0..self.depth {
            let w = &w.index("blocks", block);
            let y = self.attention(g, &w.scope("attn"), self.norm(g, w, "norm1", x)?)?;
            x = g.add(x, y)?;
            let y = linear(g, w, "mlp.linear_fc1", [self.intermediate, width], self.norm(g, w, "norm2", x)?)?;
            x = g.add(x, linear(g, w, "mlp.linear_fc2", [width, self.intermediate], g.gelu_tanh(y)?)?)?;
        }
        let block = self.merge * self.merge;
        let w = &w.scope("merger");
        let y = g.group_rows(self.norm(g, w, "norm", x)?, block)?;
        let y = linear(g, w, "linear_fc1", [block * width, block * width], y)?;
        linear(g, w, "linear_fc2", [self.out, block * width], g.gelu(y)?)
    }

    /// The patches of a frame see each other; a head's pairs turn with the row, then with the column of a patch.
    fn attention(&self, g: &Graph, w: &Weights, x: Value) -> Result<Value> {
        let (width, heads, dim) = (self.hidden, self.heads, self.hidden / self.heads);
        let qkv = linear(g, w, "qkv", [3 * width, width], x)?;
        let [q, k, v] = g.split(qkv, 1, [width; 3])?;
        let quarter = dim / 4;
        let one_axis: Vec<f32> =
            (0..quarter).map(|j| 10_000_f32.powf(-(j as f32) / quarter as f32)).collect();
        let rope = Rope {
            inv_freq: [one_axis.as_slice(), &one_axis].concat(),
            attention_factor: 1.0,
            style: RotaryStyle::Half,
            sections: vec![0, quarter, quarter],
            blocked_sections: true,
        };
        let positions = g.patch_positions()?;
        let q = g.rope(g.heads(q, heads, dim)?, positions, &rope)?;
        let k = g.rope(g.heads(k, heads, dim)?, positions, &rope)?;
        let y =
            g.attention_local(q, k, g.heads(v, heads, dim)?, &Attention::full((dim as f64).powf(-0.5)))?;
        linear(g, w, "proj", [width, width], g.flatten(y)?)
    }

    fn norm(&self, g: &Graph, w: &Weights, name: &str, x: Value) -> Result<Value> {
        let weight = vector(g, w, &format!("{name}.weight"), self.hidden)?;
        let bias = vector(g, w, &format!("{name}.bias"), self.hidden)?;
        g.layer_norm(x, weight, Some(bias), LAYER_NORM_EPS)
    }
}

fn vector(g: &Graph, w: &Weights, name: &str, width: usize) -> Result<Weight> {
    g.weight(w.name(name), &[width], Role::Replicated)
}

fn linear(g: &Graph, w: &Weights, name: &str, shape: [usize; 2], x: Value) -> Result<Value> {
    let weight = g.weight(w.name(&format!("{name}.weight")), &shape, Role::Replicated)?;
    g.linear_bias(x, weight, Some(vector(g, w, &format!("{name}.bias"), shape[0])?))
}
