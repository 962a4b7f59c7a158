//! Names to weights: scopes over checkpoint names, roles, and expressions computed once at load.
//!
//! A plugin asks for tensors by name and logical shape. Formats, shards and packing are the core's business.

use crate::attr::{AttrValue, Attrs};
use crate::error::Result;
use crate::graph::{Graph, Weight};

/// How a weight is cut over tensor-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Output features (rows) are cut; the result is sharded over its last axis.
    Column,
    /// Input features (columns) are cut; the result is a partial sum.
    Row,
    /// Rows are vocabulary entries.
    Vocab,
    /// Axis 0 counts experts.
    Expert,
    /// Every rank has all of it.
    Replicated,
    /// A router: replicated, and never quantised.
    Router,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Column => "column",
            Self::Row => "row",
            Self::Vocab => "vocab",
            Self::Expert => "expert",
            Self::Replicated => "replicated",
            Self::Router => "router",
        }
    }
}

/// The names a tensor may have; the first that the checkpoint has is used. The first is also the canonical
/// module path, whatever the file format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorName(Vec<String>);

impl TensorName {
    /// Adds a full alternative name.
    #[must_use]
    pub fn or(mut self, name: impl Into<String>) -> Self {
        self.0.push(name.into());
        self
    }
}

impl From<&str> for TensorName {
    fn from(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }
}

/// A place in the checkpoint's tree of names: `model.layers.3.self_attn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    prefixes: Vec<String>,
    gguf: String,
}

impl Weights {
    /// The root, under one or several equivalent prefixes (`""`, or `"model"` and `"model.language_model"`).
    #[must_use]
    pub fn root(prefixes: &[&str]) -> Self {
        Self { prefixes: prefixes.iter().map(|p| dotted(p)).collect(), gguf: String::new() }
    }

    /// One level down: `"self_attn"`.
    #[must_use]
    pub fn scope(&self, name: &str) -> Self {
        let prefixes = self.prefixes.iter().map(|p| format!("{p}{}", dotted(name))).collect();
        Self { prefixes, gguf: self.gguf.clone() }
    }

    /// One numbered level down: `"layers"`, 3.
    #[must_use]
    pub fn index(&self, name: &str, index: usize) -> Self {
        self.scope(&format!("{name}.{index}"))
    }

    /// The GGUF scope that belongs to this place: `"blk.3"`. Deeper scopes keep it.
    #[must_use]
    pub fn gguf_scope(&self, name: &str) -> Self {
        Self { prefixes: self.prefixes.clone(), gguf: dotted(name) }
    }

    /// A tensor here: `"q_proj.weight"`.
    #[must_use]
    pub fn name(&self, name: &str) -> TensorName {
        TensorName(self.prefixes.iter().map(|p| format!("{p}{name}")).collect())
    }

    /// A tensor here and its GGUF twin of the same layout: `"o_proj.weight"`, `"attn_output.weight"`.
    #[must_use]
    pub fn twin(&self, name: &str, gguf: &str) -> TensorName {
        self.name(name).or(format!("{}{gguf}", self.gguf))
    }

    /// A GGUF tensor here whose layout differs from its Hugging Face counterpart.
    #[must_use]
    pub fn gguf_name(&self, gguf: &str) -> TensorName {
        TensorName(vec![format!("{}{gguf}", self.gguf)])
    }
}

fn dotted(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("{name}.") }
}

impl Graph {
    /// Asks for a tensor of a logical shape (`[out, in]` for a matrix).
    #[track_caller]
    pub fn weight(&self, name: impl Into<TensorName>, shape: &[usize], role: Role) -> Result<Weight> {
        let names = name.into().0;
        let attrs =
            Attrs::new().with("names", AttrValue::Strs(names)).with("shape", shape).with("role", role.name());
        self.weight_op("weight/1", &[], &attrs)
    }

    /// Asks for one tensor per expert, stacked on a new axis 0. `{e}` in the names stands for the expert's number;
    /// `shape` is one expert's.
    #[track_caller]
    pub fn expert_weights(
        &self,
        name: impl Into<TensorName>,
        experts: usize,
        shape: &[usize],
    ) -> Result<Weight> {
        let attrs = Attrs::new()
            .with("names", AttrValue::Strs(name.into().0))
            .with("experts", experts)
            .with("shape", shape);
        self.weight_op("weight.experts/1", &[], &attrs)
    }

    /// The first alternative whose tensors the checkpoint has; all have the same shape. Without a checkpoint, the first.
    #[track_caller]
    pub fn first_of(&self, alternatives: &[Weight]) -> Result<Weight> {
        self.weight_op("weight.first_of/1", alternatives, &Attrs::new())
    }

    /// Joins weights along an existing axis.
    #[track_caller]
    pub fn weight_stack(&self, parts: &[Weight], axis: usize) -> Result<Weight> {
        self.weight_op("weight.stack/1", parts, &Attrs::new().with("axis", axis))
    }

    /// Part of a weight: `start .. end` of one axis.
    #[track_caller]
    pub fn weight_slice(&self, weight: Weight, axis: usize, start: usize, end: usize) -> Result<Weight> {
        let attrs = Attrs::new().with("axis", axis).with("start", start).with("end", end);
        self.weight_op("weight.slice/1", &[weight], &attrs)
    }

    /// The same elements in row-major order under another shape.
    #[track_caller]
    pub fn weight_reshape(&self, weight: Weight, shape: &[usize]) -> Result<Weight> {
        self.weight_op("weight.reshape/1", &[weight], &Attrs::new().with("shape", shape))
    }

    /// Axes reordered: axis `i` of the result is axis `axes[i]` of `weight`.
    #[track_caller]
    pub fn weight_permute(&self, weight: Weight, axes: &[usize]) -> Result<Weight> {
        self.weight_op("weight.permute/1", &[weight], &Attrs::new().with("axes", axes))
    }

    /// `factor · w + shift`.
    #[track_caller]
    pub fn weight_affine(&self, weight: Weight, factor: f64, shift: f64) -> Result<Weight> {
        self.weight_op(
            "weight.affine/1",
            &[weight],
            &Attrs::new().with("factor", factor).with("shift", shift),
        )
    }

    /// `−eʷ`, in f32.
    #[track_caller]
    pub fn weight_neg_exp(&self, weight: Weight) -> Result<Weight> {
        self.weight_op("weight.neg_exp/1", &[weight], &Attrs::new())
    }

    /// `ln(−w)`, in f32.
    #[track_caller]
    pub fn weight_log_neg(&self, weight: Weight) -> Result<Weight> {
        self.weight_op("weight.log_neg/1", &[weight], &Attrs::new())
    }

    /// Undoes the row order that GGUF files of architecture `llama` use for rotary heads: rows
    /// `[heads, dim/2, 2]` become `[heads, 2, dim/2]`. `shape` is the weight's, `[heads · dim, …]`.
    #[track_caller]
    pub fn weight_unpermute_rope(&self, weight: Weight, heads: usize, shape: &[usize]) -> Result<Weight> {
        let rows = shape.first().copied().unwrap_or(0);
        let half = rows / heads.max(1) / 2;
        let rest = &shape[1.min(shape.len())..];
        let split = self.weight_reshape(weight, &[&[heads, half, 2], rest].concat())?;
        let axes: Vec<usize> = [0, 2, 1].into_iter().chain(3..3 + rest.len()).collect();
        let swapped = self.weight_permute(split, &axes)?;
        self.weight_reshape(swapped, shape)
    }

    #[track_caller]
    fn weight_op(&self, op: &str, inputs: &[Weight], attrs: &Attrs) -> Result<Weight> {
        let ids: Vec<_> = inputs.iter().map(|w| w.0).collect();
        self.op1(op, &ids, attrs).map(|v| Weight(v.0))
    }
}
