//! Evaluates a graph op by op, in the order of emission.

use std::collections::BTreeMap;
use std::ops::Range;

use metrale_graph::dim::Symbol;
use metrale_graph::{Graph, Node, StateDecl, ValueId, ValueKind};

use crate::batch::Batch;
use crate::error::{Fault, RunError};
use crate::ops::{self, Rule};
use crate::state::Sequence;
use crate::tensor::{Ints, Tensor, Value};
use crate::weights::Weights;

/// What a step keeps besides outputs and taps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Keep {
    /// Nothing: values are dropped after their last use.
    #[default]
    Outputs,
    /// Every activation, by value number.
    Everything,
}

/// What a step produced.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// By output name.
    pub by_name: BTreeMap<String, Tensor>,
    /// By tap name and index.
    pub taps: BTreeMap<(String, usize), Tensor>,
    /// Every activation, with [`Keep::Everything`].
    pub values: BTreeMap<ValueId, Value>,
}

/// Runs one step. Sequence `i` owns segment `i` of the batch; its states are read and advanced.
///
/// # Errors
/// The first op that cannot be computed. States may then be half advanced.
pub fn run(
    graph: &Graph,
    weights: &Weights,
    batch: &Batch,
    sequences: &mut [&mut Sequence],
    keep: Keep,
) -> Result<Outputs, Box<RunError>> {
    let mut values: Vec<Option<Value>> = vec![None; graph.values.len()];
    let mut outputs = Outputs::default();
    let last_uses = last_uses(graph);
    for (number, node) in graph.nodes.iter().enumerate() {
        let fail = |fault| {
            Box::new(RunError {
                entry: graph.entry.clone(),
                node: number,
                op: node.op.name,
                source_line: node.source.clone(),
                fault,
            })
        };
        let args = Args { node, graph, weights, values: &values, batch, num_sequences: sequences.len() };
        let results = evaluate(&args, sequences, &mut outputs).map_err(fail)?;
        for (id, value) in node.outputs.iter().zip(results) {
            values[id.0 as usize] = Some(value);
        }
        if keep == Keep::Outputs {
            for id in node.inputs.iter().flatten().filter(|id| last_uses[id.0 as usize] == number) {
                values[id.0 as usize] = None;
            }
        }
    }
    if keep == Keep::Everything {
        let numbered = values.into_iter().enumerate();
        outputs.values = numbered.filter_map(|(i, v)| Some((ValueId(i as u32), v?))).collect();
    }
    Ok(outputs)
}

/// The last op that reads each value.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last = vec![0; graph.values.len()];
    for (number, node) in graph.nodes.iter().enumerate() {
        for id in node.inputs.iter().flatten() {
            last[id.0 as usize] = number;
        }
    }
    last
}

fn evaluate(
    args: &Args<'_>,
    sequences: &mut [&mut Sequence],
    outputs: &mut Outputs,
) -> Result<Vec<Value>, Fault> {
    let name = || args.node.attrs.str("name").unwrap_or("").to_owned();
    match ops::find(args.node.op.name).ok_or(Fault::Unimplemented)? {
        Rule::One(f) => Ok(vec![f(args)?.into()]),
        Rule::Many(f) => f(args),
        Rule::Stateful(f) => Ok(vec![f(args, sequences)?]),
        Rule::Declares => Ok(vec![Value::State; args.node.outputs.len()]),
        Rule::Output => {
            outputs.by_name.insert(name(), args.tensor(0)?.clone());
            Ok(Vec::new())
        }
        Rule::Tap => {
            outputs.taps.insert((name(), args.size("index")), args.tensor(0)?.clone());
            Ok(Vec::new())
        }
    }
}

/// What an op sees. Attributes are complete: the builder has checked them against the schema.
pub(crate) struct Args<'a> {
    pub(crate) node: &'a Node,
    graph: &'a Graph,
    weights: &'a Weights,
    values: &'a [Option<Value>],
    pub(crate) batch: &'a Batch,
    num_sequences: usize,
}

impl<'a> Args<'a> {
    /// An activation or weight.
    pub(crate) fn tensor(&self, input: usize) -> Result<&'a Tensor, Fault> {
        self.optional(input)?.ok_or(Fault::Kind { input, expected: "given" })
    }

    /// An activation or weight that may be missing.
    pub(crate) fn optional(&self, input: usize) -> Result<Option<&'a Tensor>, Fault> {
        let Some(id) = self.node.optional_input(input) else { return Ok(None) };
        if self.graph.value(id).kind == ValueKind::Weight {
            return self.weights.get(id).map(Some).ok_or(Fault::MissingWeight { value: id.0 });
        }
        match &self.values[id.0 as usize] {
            Some(Value::Float(tensor)) => Ok(Some(tensor)),
            _ => Err(Fault::Kind { input, expected: "an activation" }),
        }
    }

    /// Token ids, positions, indices.
    pub(crate) fn ints(&self, input: usize) -> Result<&'a Ints, Fault> {
        self.optional_ints(input)?.ok_or(Fault::Kind { input, expected: "given" })
    }

    /// Token ids, positions, indices that may be missing.
    pub(crate) fn optional_ints(&self, input: usize) -> Result<Option<&'a Ints>, Fault> {
        let Some(id) = self.node.optional_input(input) else { return Ok(None) };
        match &self.values[id.0 as usize] {
            Some(Value::Int(ints)) => Ok(Some(ints)),
            _ => Err(Fault::Kind { input, expected: "integers" }),
        }
    }

    /// The declaration of a state input.
    pub(crate) fn state(&self, input: usize) -> Result<&'a StateDecl, Fault> {
        self.optional_state(input).ok_or(Fault::Kind { input, expected: "a state" })
    }

    /// The declaration of a state input that may be missing.
    pub(crate) fn optional_state(&self, input: usize) -> Option<&'a StateDecl> {
        match self.graph.value(self.node.optional_input(input)?).kind {
            ValueKind::State(index) => self.graph.states.get(index),
            _ => None,
        }
    }

    /// How many inputs are given, for ops with any number of them.
    pub(crate) fn num_inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// The shape that the graph declares for an output, in this step.
    pub(crate) fn output_shape(&self, output: usize) -> Vec<usize> {
        let shape = &self.graph.value(self.node.outputs[output]).shape;
        shape.iter().map(|dim| dim.eval(|symbol| self.count(symbol))).collect()
    }

    /// Whether the first output is an integer value.
    pub(crate) fn makes_ints(&self) -> bool {
        self.graph.value(self.node.outputs[0]).kind == ValueKind::Int
    }

    fn count(&self, symbol: Symbol) -> usize {
        if symbol == Symbol::N { self.num_sequences } else { self.batch.count(symbol) }
    }

    /// Rows of an input's axis 0 that belong together: of one sequence, or of one segment of patches.
    pub(crate) fn segments(&self, input: usize) -> Vec<Range<usize>> {
        match self.symbol(input) {
            Some(symbol) => self.batch.ranges(symbol),
            None => Vec::new(),
        }
    }

    /// [`Args::segments`] for an op that advances states: one segment per sequence.
    pub(crate) fn sequence_segments(&self, input: usize) -> Result<Vec<Range<usize>>, Fault> {
        let segments = self.segments(input);
        if segments.len() == self.num_sequences {
            return Ok(segments);
        }
        let symbol = self.symbol(input).map_or_else(|| "rows".to_owned(), |s| format!("{s:?}"));
        Err(Fault::Segments { symbol, found: segments.len(), sequences: self.num_sequences })
    }

    fn symbol(&self, input: usize) -> Option<Symbol> {
        self.graph.value(self.node.optional_input(input)?).shape.first()?.symbol
    }

    pub(crate) fn float(&self, key: &str) -> f64 {
        self.node.attrs.float(key).unwrap_or(0.0)
    }

    pub(crate) fn size(&self, key: &str) -> usize {
        self.node.attrs.size(key).unwrap_or(0)
    }

    pub(crate) fn sizes(&self, key: &str) -> Vec<usize> {
        self.node.attrs.ints(key).unwrap_or(&[]).iter().map(|&v| usize::try_from(v).unwrap_or(0)).collect()
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.node.attrs.bool(key).unwrap_or(false)
    }

    pub(crate) fn text(&self, key: &str) -> &'a str {
        self.node.attrs.str(key).unwrap_or("")
    }
}
