//! Inputs, outputs, taps, constants.

use crate::attr::{AttrValue, Attrs};
use crate::error::Result;
use crate::graph::{Graph, Operand, Value};

impl Graph {
    /// A value that the core feeds: see the table of inputs in op-set.md. `width` is the last dimension of a float input.
    #[track_caller]
    pub fn input(&self, name: &str, width: Option<usize>) -> Result<Value> {
        self.op1("input/1", &[], &Attrs::new().with("name", name).with_some("width", width))
    }

    /// Token ids, `[T]`.
    #[track_caller]
    pub fn token_ids(&self) -> Result<Value> {
        self.input("token_ids", None)
    }

    /// Position of every row in its sequence, `[T]`.
    #[track_caller]
    pub fn positions(&self) -> Result<Value> {
        self.input("positions", None)
    }

    /// Source token ids of an encoder, `[S]`.
    #[track_caller]
    pub fn source_ids(&self) -> Result<Value> {
        self.input("source_ids", None)
    }

    /// Position of every source row in its source sequence, `[S]`.
    #[track_caller]
    pub fn source_positions(&self) -> Result<Value> {
        self.input("source_positions", None)
    }

    /// A value that the core reads.
    #[track_caller]
    pub fn output(&self, name: &str, value: Value) -> Result<()> {
        self.op0("output/1", &[value.0], &Attrs::new().with("name", name))
    }

    /// Marks a value for inspection; costs nothing when nobody looks.
    #[track_caller]
    pub fn tap(&self, name: &str, index: usize, value: Value) -> Result<()> {
        self.op0("tap/1", &[value.0], &Attrs::new().with("name", name).with("index", index))
    }

    /// A vector of constants, `[values.len()]`.
    #[track_caller]
    pub fn constant(&self, values: &[f32]) -> Result<Value> {
        self.op1("const/1", &[], &Attrs::new().with("values", values))
    }

    pub(crate) fn enter_layer(&self, index: Option<usize>) -> Result<()> {
        self.op0("scope/1", &[], &Attrs::new().with("layer", index.map_or(-1, |i| i as i64)))
    }

    pub(crate) fn info(&self, attrs: &[(String, AttrValue)]) -> Result<()> {
        let mut all = Attrs::new();
        for (key, value) in attrs {
            all.insert(key, value.clone());
        }
        self.op0("info/1", &[], &all)
    }

    /// Looks rows up in a table: `[T]` ids and `[V, H]` give `[T, H]`.
    #[track_caller]
    pub fn embedding(&self, ids: Value, table: crate::graph::Weight) -> Result<Value> {
        self.op1("embedding/1", &[ids.0, table.id()], &Attrs::new())
    }
}
