//! What a step is fed with: row counts per sequence, and the named inputs of the graph.

use std::collections::BTreeMap;
use std::ops::Range;

use metrale_graph::dim::Symbol;

use crate::tensor::{Ints, Tensor, Value};

/// The inputs of one step. Rows of one sequence are contiguous and in order; several sequences follow one another, each
/// with its own number of rows, so prefill, decode and verification mix freely.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    segments: BTreeMap<Symbol, Vec<usize>>,
    inputs: BTreeMap<String, Value>,
}

impl Batch {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Rows of each sequence along one symbol: `T` for tokens, `S` for source tokens; for `P`, patches of each segment that
    /// attends to itself.
    #[must_use]
    pub fn segments(mut self, symbol: Symbol, rows: &[usize]) -> Self {
        self.segments.insert(symbol, rows.to_vec());
        self
    }

    /// A one-dimensional integer input: `token_ids`, `positions`, …
    #[must_use]
    pub fn ids(self, name: &str, ids: Vec<i64>) -> Self {
        self.ints(name, Ints { shape: vec![ids.len()], data: ids })
    }

    /// An integer input.
    #[must_use]
    pub fn ints(mut self, name: &str, ints: Ints) -> Self {
        self.inputs.insert(name.to_owned(), Value::Int(ints));
        self
    }

    /// A float input: `hidden`, `features`, `pixels`.
    #[must_use]
    pub fn floats(mut self, name: &str, tensor: Tensor) -> Self {
        self.inputs.insert(name.to_owned(), Value::Float(tensor));
        self
    }

    pub(crate) fn input(&self, name: &str) -> Option<&Value> {
        self.inputs.get(name)
    }

    pub(crate) fn count(&self, symbol: Symbol) -> usize {
        self.rows_of(symbol).iter().sum()
    }

    pub(crate) fn rows_of(&self, symbol: Symbol) -> &[usize] {
        self.segments.get(&symbol).map_or(&[], Vec::as_slice)
    }

    /// Where the rows of each segment lie, for a symbol.
    pub(crate) fn ranges(&self, symbol: Symbol) -> Vec<Range<usize>> {
        let mut start = 0;
        self.rows_of(symbol)
            .iter()
            .map(|&rows| {
                start += rows;
                start - rows..start
            })
            .collect()
    }
}
