//! The traced graph: nodes in order of emission, their values, the states and weights they name.

use metrale_plugin_api::Attrs;
use metrale_plugin_api::abi::ValueId;

use crate::dim::Shape;
use crate::schema::OpSchema;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Activations.
    Float,
    /// Token ids, positions, indices.
    Int,
    /// A weight, or an expression over weights.
    Weight,
    /// A state, by its number in [`Graph::states`].
    State(usize),
}

/// How a value lies over tensor-parallel ranks. Shapes in a graph are global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// Every rank has all of it.
    Replicated,
    /// Every rank has a slice of this axis.
    Axis(usize),
    /// Every rank has a summand; the sum is the value.
    Partial,
}

impl Sharding {
    /// What remains after a pending sum has been reduced.
    #[must_use]
    pub fn settled(self) -> Self {
        if self == Self::Partial { Self::Replicated } else { self }
    }
}

/// Facts of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// What it is.
    pub kind: ValueKind,
    /// Its dimensions.
    pub shape: Shape,
    /// How it lies over ranks.
    pub sharding: Sharding,
}

impl ValueInfo {
    /// The width of the last axis, if it is fixed.
    #[must_use]
    pub fn width(&self) -> Option<usize> {
        self.shape.last().and_then(|d| d.size())
    }

    /// The shape, if all of it is fixed.
    #[must_use]
    pub fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(|d| d.size()).collect()
    }
}

/// The author's source line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// File.
    pub file: String,
    /// Line, 0 if unknown.
    pub line: u32,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One op of a graph.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub op: &'static OpSchema,
    /// Inputs in schema order; `None` for an optional one that is not given.
    pub inputs: Vec<Option<ValueId>>,
    /// The values it makes.
    pub outputs: Vec<ValueId>,
    /// Attributes, defaults filled in.
    pub attrs: Attrs,
    /// The author's source line.
    pub source: Source,
    /// The decoder layer it belongs to.
    pub layer: Option<usize>,
}

impl Node {
    /// An input that the schema requires.
    ///
    /// # Panics
    /// Never for a node that went through [`crate::Builder`], which checks it.
    #[must_use]
    pub fn input(&self, index: usize) -> ValueId {
        self.inputs[index].unwrap_or(ValueId::NONE)
    }

    /// An input that may be missing.
    #[must_use]
    pub fn optional_input(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }
}

/// What a state holds per sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// Keys and values of every token.
    Kv(KvLayout),
    /// Keys and values of every source token, written once per request by the encoder.
    Cross(KvLayout),
    /// One f32 tensor.
    Recurrent {
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The most recent inputs of a convolution.
    Conv {
        /// Channels.
        channels: usize,
        /// Inputs kept: (kernel width − 1) · dilation.
        columns: usize,
    },
    /// The most recent token ids, −1 where there was none.
    Tokens {
        /// Ids kept.
        count: usize,
    },
}

/// Layout of a KV state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// KV heads.
    pub num_heads: usize,
    /// Width of a key head.
    pub k_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
    /// Values are a prefix of the keys.
    pub v_is_k_prefix: bool,
    /// Only this many most recent tokens are read.
    pub window: Option<usize>,
}

/// A state that a graph declares. States of the same name in several entries of a model are one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDecl {
    /// Stable name: `layers.3.self`.
    pub name: String,
    /// What it holds.
    pub kind: StateKind,
}

/// One traced entry point.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// `text`, `lm_head`, `mtp`, `mtp_head`, `encoder`, `vision` or `info`.
    pub entry: String,
    /// MTP depth; 0 elsewhere.
    pub index: usize,
    /// Ops in order of emission, which is an order of execution.
    pub nodes: Vec<Node>,
    /// Facts of every value, by number.
    pub values: Vec<ValueInfo>,
    /// The node that made each value.
    pub producers: Vec<usize>,
    /// Declared states.
    pub states: Vec<StateDecl>,
}

impl Graph {
    /// Facts of a value of this graph.
    ///
    /// # Panics
    /// If the value is of another graph.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &ValueInfo {
        &self.values[id.0 as usize]
    }

    /// The node that made a value.
    ///
    /// # Panics
    /// If the value is of another graph.
    #[must_use]
    pub fn producer(&self, id: ValueId) -> &Node {
        &self.nodes[self.producers[id.0 as usize]]
    }

    /// Named outputs, in order.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.nodes
            .iter()
            .filter(|n| n.op.name == "output/1")
            .map(|n| (n.attrs.str("name").unwrap_or(""), n.input(0)))
    }

    /// An output by name.
    #[must_use]
    pub fn output(&self, name: &str) -> Option<ValueId> {
        self.outputs().find(|(n, _)| *n == name).map(|(_, id)| id)
    }

    /// Weights that ops read at run time: the roots of the load-time expressions, each once, in order of first use.
    #[must_use]
    pub fn weight_roots(&self) -> Vec<ValueId> {
        let mut roots = Vec::new();
        for node in self.nodes.iter().filter(|n| !n.op.is_weight_op()) {
            for id in node.inputs.iter().flatten() {
                if self.value(*id).kind == ValueKind::Weight && !roots.contains(id) {
                    roots.push(*id);
                }
            }
        }
        roots
    }
}
