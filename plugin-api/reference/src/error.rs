//! What goes wrong in a step, and in opening a model.

use std::path::PathBuf;

use metrale_graph::checkpoint::CheckpointError;
use metrale_graph::resolve::Report;
use metrale_graph::{PluginFailure, Source};

/// Why an op could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The batch does not feed an input that the graph reads.
    #[error("the batch has no input `{name}`")]
    MissingInput {
        /// Which input.
        name: String,
    },
    /// The batch feeds an input of the wrong kind or shape.
    #[error("the input `{name}` must be {expected}, found {found}")]
    InputShape {
        /// Which input.
        name: String,
        /// Kind and shape that the graph declares.
        expected: String,
        /// Kind and shape that were fed.
        found: String,
    },
    /// A weight was not loaded.
    #[error("the weight of value {value} is not loaded")]
    MissingWeight {
        /// Its number in the graph.
        value: u32,
    },
    /// A value of another kind than the op reads.
    #[error("input {input} is not {expected}")]
    Kind {
        /// Which input of the op.
        input: usize,
        /// What it should be.
        expected: &'static str,
    },
    /// Two shapes that do not go together.
    #[error("cannot combine {left:?} and {right:?}")]
    Shapes {
        /// One.
        left: Vec<usize>,
        /// The other.
        right: Vec<usize>,
    },
    /// Data that does not fill its shape.
    #[error("the shape {shape:?} does not have {found} elements")]
    Elements {
        /// The shape.
        shape: Vec<usize>,
        /// Elements that there are.
        found: usize,
    },
    /// An id or index beyond its table.
    #[error("{what} {index} is outside 0..{limit}")]
    OutOfRange {
        /// What it counts.
        what: &'static str,
        /// The index.
        index: i64,
        /// Size of the table.
        limit: usize,
    },
    /// A state that holds something else than the graph declares.
    #[error("the state `{name}` of this sequence has another kind or layout")]
    State {
        /// Its name.
        name: String,
    },
    /// The batch has no row counts for an axis, or not one per sequence.
    #[error("the batch has {found} segments of {symbol} and {sequences} sequences")]
    Segments {
        /// `T`, `S` or `P`.
        symbol: String,
        /// Row counts in the batch.
        found: usize,
        /// Sequences passed to the step.
        sequences: usize,
    },
    /// An op that the interpreter does not implement.
    #[error("has no reference implementation")]
    Unimplemented,
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} (op {node} of entry `{entry}`): {fault}\n  --> {source_line}")]
pub struct RunError {
    /// Entry point.
    pub entry: String,
    /// Number of the op.
    pub node: usize,
    /// Name of the op.
    pub op: &'static str,
    /// The author's source line.
    pub source_line: Source,
    /// Why.
    pub fault: Fault,
}

/// A model that cannot be opened or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A checkpoint that cannot be read.
    #[error("{}: {source}", path.display())]
    Checkpoint {
        /// File or directory.
        path: PathBuf,
        /// Why.
        source: CheckpointError,
    },
    /// A weight that cannot be computed from its tensors.
    #[error("weight `{name}`: {source}")]
    Weight {
        /// Its canonical name.
        name: String,
        /// Why.
        source: CheckpointError,
    },
    /// The plugin refused.
    #[error(transparent)]
    Plugin(Box<PluginFailure>),
    /// The checkpoint does not have what the model asks for.
    #[error("{0}")]
    Weights(Report),
    /// The model or its checkpoint has no such entry point.
    #[error("this model has no `{entry}` entry point")]
    NoEntry {
        /// Which.
        entry: &'static str,
    },
    /// A step failed.
    #[error(transparent)]
    Run(#[from] Box<RunError>),
    /// An input of the wrong size.
    #[error(transparent)]
    Input(#[from] Fault),
}

impl From<PluginFailure> for ModelError {
    fn from(failure: PluginFailure) -> Self {
        Self::Plugin(Box::new(failure))
    }
}
