//! Every problem between a graph and a checkpoint, grouped so that one mistake in sixty layers is one entry.

use std::fmt;

use crate::checkpoint::{Headers, TensorInfo};
use crate::graph::{Graph, Node, Source};

/// One problem, with the other layers that have the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// What is wrong.
    pub kind: ProblemKind,
    /// Entry point.
    pub entry: String,
    /// Layer of the first occurrence.
    pub layer: Option<usize>,
    /// The author's source line.
    pub source: Source,
    /// How many more places have the same problem.
    pub more: usize,
}

/// What is wrong with a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum ProblemKind {
    /// No tensor of any of these names.
    Missing {
        /// Names that were tried.
        names: Vec<String>,
        /// Wanted shape.
        shape: Vec<usize>,
        /// Tensors that could have been meant: name, shape, stored type.
        nearest: Vec<(String, Vec<usize>, String)>,
    },
    /// A tensor of another shape.
    Misshaped {
        /// Name.
        name: String,
        /// Wanted shape.
        wanted: Vec<usize>,
        /// Stored shape.
        found: Vec<usize>,
    },
    /// A stored type that is not supported.
    Unsupported {
        /// Name.
        name: String,
        /// Stored type.
        dtype: String,
    },
}

/// All problems of one entry point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// In order of first occurrence.
    pub problems: Vec<Problem>,
    /// Tensors that are missing, counted one by one.
    pub num_missing: usize,
}

impl Report {
    /// Whether everything fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    pub(super) fn missing(
        &mut self,
        graph: &Graph,
        node: &Node,
        names: Vec<String>,
        shape: &[usize],
        headers: &Headers,
    ) {
        self.num_missing += 1;
        let pattern = without_numbers(&names.join(" "));
        if self.repeat(|k| matches!(k, ProblemKind::Missing { names, .. } if without_numbers(&names.join(" ")) == pattern)) {
            return;
        }
        let describe = |t: &TensorInfo| (t.name.clone(), t.shape.clone(), format!("{:?}", t.dtype));
        let nearest = names
            .first()
            .map_or_else(Vec::new, |n| headers.nearest(n, 3).into_iter().map(describe).collect());
        self.push(graph, node, ProblemKind::Missing { names, shape: shape.to_vec(), nearest });
    }

    pub(super) fn misshaped(&mut self, graph: &Graph, node: &Node, tensor: &TensorInfo, wanted: &[usize]) {
        let pattern = without_numbers(&tensor.name);
        if self
            .repeat(|k| matches!(k, ProblemKind::Misshaped { name, .. } if without_numbers(name) == pattern))
        {
            return;
        }
        let kind = ProblemKind::Misshaped {
            name: tensor.name.clone(),
            wanted: wanted.to_vec(),
            found: tensor.shape.clone(),
        };
        self.push(graph, node, kind);
    }

    pub(super) fn unsupported(&mut self, graph: &Graph, node: &Node, tensor: &TensorInfo) {
        let pattern = without_numbers(&tensor.name);
        if self.repeat(
            |k| matches!(k, ProblemKind::Unsupported { name, .. } if without_numbers(name) == pattern),
        ) {
            return;
        }
        let kind =
            ProblemKind::Unsupported { name: tensor.name.clone(), dtype: format!("{:?}", tensor.dtype) };
        self.push(graph, node, kind);
    }

    fn repeat(&mut self, same: impl Fn(&ProblemKind) -> bool) -> bool {
        match self.problems.iter_mut().find(|p| same(&p.kind)) {
            Some(problem) => {
                problem.more += 1;
                true
            }
            None => false,
        }
    }

    fn push(&mut self, graph: &Graph, node: &Node, kind: ProblemKind) {
        let problem = Problem {
            kind,
            entry: graph.entry.clone(),
            layer: node.layer,
            source: node.source.clone(),
            more: 0,
        };
        self.problems.push(problem);
    }
}

fn without_numbers(name: &str) -> String {
    name.split('.')
        .map(|part| if part.bytes().all(|b| b.is_ascii_digit()) { "#" } else { part })
        .collect::<Vec<_>>()
        .join(".")
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |f: &mut fmt::Formatter<'_>| {
            let layer = self.layer.map_or_else(String::new, |l| format!(", layer {l}"));
            writeln!(f, "\n  --> {}   (entry {}{layer})", self.source, self.entry)
        };
        match &self.kind {
            ProblemKind::Missing { names, shape, nearest } => {
                write!(f, "the model asks for a tensor that the checkpoint does not have")?;
                place(f)?;
                write!(f, "   wanted   {}   {shape:?}", names.join(" or "))?;
                for (i, (name, shape, dtype)) in nearest.iter().enumerate() {
                    write!(
                        f,
                        "\n   {} {name}   {shape:?} {dtype}",
                        if i == 0 { "nearest " } else { "        " }
                    )?;
                }
            }
            ProblemKind::Misshaped { name, wanted, found } => {
                write!(f, "tensor `{name}` has another shape than the model expects")?;
                place(f)?;
                write!(f, "   wanted   {wanted:?}\n   found    {found:?}")?;
            }
            ProblemKind::Unsupported { name, dtype } => {
                write!(f, "tensor `{name}` is stored as {dtype}, which is not supported")?;
                place(f)?;
                write!(
                    f,
                    "   help: convert it to one of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K"
                )?;
            }
        }
        if self.more > 0 {
            write!(f, "\n   note: {} more like this", self.more)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "error[P0403]: {problem}")?;
        }
        Ok(())
    }
}
