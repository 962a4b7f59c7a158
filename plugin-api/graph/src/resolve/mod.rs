//! Matches the weights of a graph with the tensors of a checkpoint, before a byte of tensor data is read.
//!
//! [`resolve`] picks alternatives, checks shapes and reports every problem at once; [`Expr`] says how each weight is made
//! from stored tensors.

mod eval;
mod expr;
mod report;

use std::collections::{BTreeMap, BTreeSet};

use metrale_plugin_api::abi::ValueId;

use crate::checkpoint::{Headers, TensorInfo};
use crate::graph::{Graph, Node};

pub use expr::{Expr, RowRef};
pub use report::{Problem, ProblemKind, Report};

/// How every run-time weight of one entry point is made.
#[derive(Clone, Debug, Default)]
pub struct Resolution {
    /// By root value of the load-time expression.
    pub weights: BTreeMap<ValueId, ResolvedWeight>,
    /// Checkpoint tensors that these weights are made from.
    pub claimed: BTreeSet<String>,
    /// Names asked for in all, for telling "all absent" from "partly absent".
    pub num_requested: usize,
}

/// One weight.
#[derive(Clone, Debug)]
pub struct ResolvedWeight {
    /// Canonical module path: the first Hugging Face name asked for.
    pub name: String,
    /// How it is cut over ranks: the role of its first tensor.
    pub role: String,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// How it is made.
    pub expr: Expr,
}

/// Resolves the weights of one entry point against a checkpoint; with none, every first alternative becomes
/// [`Expr::Dummy`].
#[must_use]
pub fn resolve(graph: &Graph, headers: Option<&Headers>) -> (Resolution, Report) {
    let mut resolver =
        Resolver { graph, headers, resolution: Resolution::default(), report: Report::default() };
    for root in graph.weight_roots() {
        let leaf = resolver.first_leaf(root);
        let Some(expr) = resolver.expr(root) else { continue };
        let weight = ResolvedWeight {
            name: leaf.attrs.strs("names").and_then(|n| n.first()).cloned().unwrap_or_default(),
            role: leaf.attrs.str("role").unwrap_or("expert").to_owned(),
            shape: graph.value(root).fixed_shape().unwrap_or_default(),
            expr,
        };
        resolver.resolution.weights.insert(root, weight);
    }
    (resolver.resolution, resolver.report)
}

struct Resolver<'a> {
    graph: &'a Graph,
    headers: Option<&'a Headers>,
    resolution: Resolution,
    report: Report,
}

impl<'a> Resolver<'a> {
    fn first_leaf(&self, id: ValueId) -> &'a Node {
        let node = self.graph.producer(id);
        match node.inputs.first().copied().flatten() {
            Some(input) => self.first_leaf(input),
            None => node,
        }
    }

    /// Whether every tensor that `id` is made from exists.
    fn exists(&self, id: ValueId) -> bool {
        let node = self.graph.producer(id);
        let mut inputs = node.inputs.iter().flatten();
        match node.op.name {
            "weight/1" => self.find(node).is_some(),
            "weight.experts/1" => self.expert_name(node).is_some(),
            "weight.first_of/1" => inputs.any(|i| self.exists(*i)),
            _ => inputs.all(|i| self.exists(*i)),
        }
    }

    /// Whether any tensor that `id` is made from exists.
    fn exists_in_part(&self, id: ValueId) -> bool {
        let mut inputs = self.graph.producer(id).inputs.iter().flatten().peekable();
        if inputs.peek().is_none() { self.exists(id) } else { inputs.any(|i| self.exists_in_part(*i)) }
    }

    /// Reports alternatives of which the checkpoint has nothing as one missing tensor with the names of all.
    fn none_of(&mut self, alternatives: &[ValueId], headers: &Headers) -> Option<Expr> {
        self.resolution.num_requested += 1;
        let leaves: Vec<&Node> = alternatives.iter().map(|id| self.first_leaf(*id)).collect();
        let names = leaves.iter().flat_map(|leaf| Self::names(leaf)).map(|name| name.replace("{e}", "0"));
        let first = *leaves.first()?;
        let shape = self.graph.value(first.outputs[0]).fixed_shape().unwrap_or_default();
        self.report.missing(self.graph, first, names.collect(), &shape, headers);
        None
    }

    fn names(node: &Node) -> &[String] {
        node.attrs.strs("names").unwrap_or(&[])
    }

    fn find(&self, node: &Node) -> Option<&'a TensorInfo> {
        let headers = self.headers?;
        Self::names(node).iter().find_map(|n| headers.get(n))
    }

    /// The name pattern under which expert 0 exists.
    fn expert_name<'n>(&self, node: &'n Node) -> Option<&'n String> {
        let headers = self.headers?;
        Self::names(node).iter().find(|n| headers.get(&n.replace("{e}", "0")).is_some())
    }

    fn expr(&mut self, id: ValueId) -> Option<Expr> {
        let node = self.graph.producer(id);
        let shape = self.graph.value(id).fixed_shape()?;
        let inputs: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let attr = |key: &str| node.attrs.size(key).unwrap_or(0);
        match node.op.name {
            "weight/1" => self.tensor(node, &shape),
            "weight.experts/1" => self.experts(node, &shape),
            "weight.first_of/1" => {
                let Some(headers) = self.headers else { return self.expr(*inputs.first()?) };
                let whole = inputs.iter().find(|i| self.exists(**i));
                match whole.or_else(|| inputs.iter().find(|i| self.exists_in_part(**i))) {
                    Some(chosen) => self.expr(*chosen),
                    None => self.none_of(&inputs, headers),
                }
            }
            "weight.stack/1" => {
                let parts: Vec<_> = inputs.iter().map(|i| self.expr(*i)).collect();
                Some(Expr::Stack { parts: parts.into_iter().collect::<Option<_>>()?, axis: attr("axis") })
            }
            "weight.slice/1" => {
                let of = Box::new(self.expr(inputs[0])?);
                Some(Expr::Slice { of, axis: attr("axis"), start: attr("start"), end: attr("end") })
            }
            "weight.reshape/1" => Some(Expr::Reshape { of: Box::new(self.expr(inputs[0])?), shape }),
            "weight.permute/1" => {
                let axes = node.attrs.ints("axes").unwrap_or(&[]).iter().map(|&a| a as usize).collect();
                Some(Expr::Permute { of: Box::new(self.expr(inputs[0])?), axes })
            }
            "weight.affine/1" => {
                let float = |key: &str| node.attrs.float(key).unwrap_or(0.0);
                Some(Expr::Affine {
                    of: Box::new(self.expr(inputs[0])?),
                    factor: float("factor"),
                    shift: float("shift"),
                })
            }
            "weight.neg_exp/1" => Some(Expr::NegExp(Box::new(self.expr(inputs[0])?))),
            "weight.log_neg/1" => Some(Expr::LogNeg(Box::new(self.expr(inputs[0])?))),
            _ => None,
        }
    }

    fn tensor(&mut self, node: &Node, shape: &[usize]) -> Option<Expr> {
        self.resolution.num_requested += 1;
        let names = Self::names(node);
        let Some(headers) = self.headers else {
            return Some(Expr::Dummy { name: names.first()?.clone(), shape: shape.to_vec() });
        };
        if let Some(tensor) = names.iter().find_map(|n| headers.get(n)) {
            self.claim(node, tensor, shape)
        } else {
            self.report.missing(self.graph, node, names.to_vec(), shape, headers);
            None
        }
    }

    fn claim(&mut self, node: &Node, tensor: &TensorInfo, shape: &[usize]) -> Option<Expr> {
        self.resolution.claimed.insert(tensor.name.clone());
        if tensor.shape != shape {
            self.report.misshaped(self.graph, node, tensor, shape);
            return None;
        }
        if !crate::checkpoint::dequant::is_convertible(tensor.dtype) {
            self.report.unsupported(self.graph, node, tensor);
            return None;
        }
        Some(Expr::Tensor(tensor.clone()))
    }

    fn experts(&mut self, node: &Node, shape: &[usize]) -> Option<Expr> {
        let (experts, one) = (shape[0], &shape[1..]);
        let pattern = self.expert_name(node).or(Self::names(node).first())?.clone();
        let mut parts = Vec::with_capacity(experts);
        let mut complete = true;
        for e in 0..experts {
            let name = pattern.replace("{e}", &e.to_string());
            self.resolution.num_requested += 1;
            let part = match self.headers {
                None => Some(Expr::Dummy { name, shape: one.to_vec() }),
                Some(headers) => {
                    if let Some(tensor) = headers.get(&name) {
                        self.claim(node, tensor, one)
                    } else {
                        self.report.missing(self.graph, node, vec![name], one, headers);
                        None
                    }
                }
            };
            match part {
                Some(part) => parts.push(Expr::Reshape { of: Box::new(part), shape: [&[1], one].concat() }),
                None => complete = false,
            }
        }
        complete.then_some(Expr::Stack { parts, axis: 0 })
    }
}

/// Tensors of the checkpoint that no entry point claims and no pattern of `ignored` (`*` matches anything) covers.
#[must_use]
pub fn unclaimed<'a>(
    headers: &'a Headers,
    claimed: &BTreeSet<String>,
    ignored: &[String],
) -> Vec<&'a TensorInfo> {
    headers
        .iter()
        .filter(|t| !claimed.contains(&t.name) && !ignored.iter().any(|p| matches(p, &t.name)))
        .collect()
}

/// Whether `name` fits `pattern`, in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut last_was_star = pattern.contains('*');
    let middle: Vec<_> = parts.collect();
    for (i, part) in middle.iter().enumerate() {
        if i + 1 == middle.len() {
            return rest.ends_with(part) && rest.len() >= part.len();
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
        last_was_star = true;
    }
    last_was_star || rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_anything() {
        assert!(matches("model.visual.*", "model.visual.blocks.0.norm"));
        assert!(matches("*.bias", "a.b.bias"));
        assert!(matches("a.*.c", "a.b.c"));
        assert!(!matches("a.*.c", "a.b.d"));
        assert!(matches("a", "a"));
        assert!(!matches("a", "ab"));
    }
}
