//! One step per op, before any rewrite. One file per family of ops.

mod attention;
mod elementwise;
mod indexer;
mod io;
mod linear;
mod moe;
mod norm;
mod positions;
mod reader;
mod recurrent;
mod shape;
mod vision;

use std::collections::BTreeMap;

use metrale_graph::resolve::{Resolution, ResolvedWeight};
use metrale_graph::{Graph, Node, StateDecl, StateKind, ValueId, ValueKind};

use super::plan::{Combine, Function, MatrixId, Plan, Planned, Reg, StateId, Step, Vector, VectorId};
use super::{LowerError, Taps, Target};
use reader::Reader;

type Result<T> = std::result::Result<T, LowerError>;

/// Lowers every node in order.
pub(super) fn build(
    graph: &Graph,
    resolution: &Resolution,
    states: &[StateDecl],
    target: Target,
) -> Result<Plan> {
    let mut builder = Builder {
        graph,
        resolution,
        states,
        target,
        plan: Plan::default(),
        regs: BTreeMap::new(),
        constants: BTreeMap::new(),
        matrices: BTreeMap::new(),
    };
    for node in graph.nodes.iter().filter(|n| !n.op.is_weight_op()) {
        builder.node(node)?;
    }
    Ok(builder.plan)
}

struct Builder<'a> {
    graph: &'a Graph,
    resolution: &'a Resolution,
    states: &'a [StateDecl],
    target: Target,
    plan: Plan,
    /// Where activations are.
    regs: BTreeMap<ValueId, Reg>,
    /// Values that are known at load.
    constants: BTreeMap<ValueId, Vector>,
    /// Matrices already in the plan, by value.
    matrices: BTreeMap<ValueId, MatrixId>,
}

impl Builder<'_> {
    fn node(&mut self, node: &Node) -> Result<()> {
        // These compute nothing; facts of the model may have any attribute.
        if matches!(node.op.name, "scope/1" | "info/1")
            || node.op.name == "tap/1" && self.target.taps == Taps::Drop
        {
            return Ok(());
        }
        let reader = Reader::new(node);
        let step = self.step(node, &reader)?;
        reader.finish()?;
        if let Some(step) = step {
            self.push(node, step);
        }
        Ok(())
    }

    fn push(&mut self, node: &Node, step: Step) {
        self.plan.steps.push(Planned { step, source: node.source.clone(), layer: node.layer });
    }

    /// What an op launches; nothing for one that only names or rearranges values.
    fn step(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Option<Step>> {
        Ok(Some(match node.op.name {
            "tap/1" => return self.tap(reader),
            "input/1" => return self.input(node, reader),
            "output/1" => return self.output(reader),
            "const/1" => {
                self.constants.insert(node.outputs[0], Vector::Constant(reader.floats("values")?));
                return Ok(None);
            }
            "state/1" => return Self::declare_state(reader),
            "reshape/1" | "flatten/1" => return self.alias(node, reader),
            "split/1" => return self.split(node, reader),
            "add/1" => return self.binary(node, reader, Combine::Add),
            "mul/1" => return self.binary(node, reader, Combine::Mul),
            "div/1" => return self.binary(node, reader, Combine::Div),
            "embedding/1" => self.embedding(node, reader)?,
            "linear/1" => self.linear(node, reader)?,
            "head_linear/1" => self.head_linear(node, reader)?,
            "rms_norm/1" => self.rms_norm(node, reader)?,
            "layer_norm/1" => self.layer_norm(node, reader)?,
            "l2_norm/1" => self.l2_norm(node, reader)?,
            "concat/1" => self.concat(node, reader)?,
            "repeat/1" => self.repeat(node, reader)?,
            "group_rows/1" => return self.group_rows(node, reader),
            "merge_rows/1" => return self.merge_rows(node, reader),
            "sum/1" => self.reduce(node, reader, |_| 1.0)?,
            "mean/1" => self.reduce(node, reader, |count| 1.0 / count as f32)?,
            "rope/1" => self.rope(node, reader)?,
            "sinusoid/1" => self.sinusoid(node, reader)?,
            "kv_write/1" => self.kv_write(reader)?,
            "attention/1" => self.attention(node, reader)?,
            "indexer_topk/1" => self.indexer_topk(node, reader)?,
            "causal_conv1d/1" => self.causal_conv1d(node, reader)?,
            "gated_delta_rule/1" => self.gated_delta_rule(node, reader)?,
            "moe/1" => self.moe(node, reader)?,
            "affine/1" => self.affine(node, reader)?,
            "clamp/1" => self.clamp(node, reader)?,
            "silu/1" => self.unary(node, reader, Function::Silu)?,
            "sigmoid/1" => self.unary(node, reader, Function::Sigmoid)?,
            "relu/1" => self.unary(node, reader, Function::Relu)?,
            "tanh/1" => self.unary(node, reader, Function::Tanh)?,
            "exp/1" => self.unary(node, reader, Function::Exp)?,
            "softplus/1" => self.unary(node, reader, Function::Softplus)?,
            "gelu/1" => self.unary(node, reader, Function::Gelu)?,
            "gelu_tanh/1" => self.unary(node, reader, Function::GeluTanh)?,
            _ => return Err(reader.unsupported("")),
        }))
    }

    /// The register of a required input.
    fn reg(&self, reader: &Reader<'_>, index: usize) -> Result<Reg> {
        let id = reader.input(index);
        self.regs
            .get(&id)
            .copied()
            .ok_or_else(|| reader.unsupported(&format!("input {index} is not an activation")))
    }

    /// A register for a value.
    fn new_reg(&mut self, id: ValueId) -> Reg {
        let width = self.dims(id).iter().product();
        let reg = self.scratch(width);
        self.plan.divisors[reg.0] = self.graph.value(id).shape[0].div;
        self.regs.insert(id, reg);
        reg
    }

    /// A register that no value names.
    fn scratch(&mut self, width: usize) -> Reg {
        self.plan.widths.push(width);
        self.plan.divisors.push(1);
        Reg(self.plan.widths.len() - 1)
    }

    /// Sizes of a row's axes.
    fn dims(&self, id: ValueId) -> Vec<usize> {
        self.graph.value(id).shape[1..].iter().filter_map(|d| d.size()).collect()
    }

    /// Sizes of a row's axes, of which there are as many as the caller names.
    fn row<const N: usize>(&self, reader: &Reader<'_>, id: ValueId) -> Result<[usize; N]> {
        let dims = self.dims(id);
        <[usize; N]>::try_from(dims)
            .map_err(|found| reader.unsupported(&format!("rows of shape {found:?} have no kernel")))
    }

    fn weight(&self, reader: &Reader<'_>, id: ValueId) -> Result<&ResolvedWeight> {
        self.resolution.weights.get(&id).ok_or_else(|| reader.unsupported("a weight was not resolved"))
    }

    fn matrix(&mut self, reader: &Reader<'_>, id: ValueId) -> Result<MatrixId> {
        if let Some(known) = self.matrices.get(&id) {
            return Ok(*known);
        }
        let weight = self.weight(reader, id)?.clone();
        let matrix = MatrixId(self.plan.matrices.len());
        self.plan.matrices.push(weight);
        self.matrices.insert(id, matrix);
        Ok(matrix)
    }

    /// A weight vector or constant.
    fn known(&self, reader: &Reader<'_>, id: ValueId) -> Result<Vector> {
        match self.constants.get(&id) {
            Some(vector) => Ok(vector.clone()),
            None => self.weight(reader, id).map(|w| Vector::Weight(w.clone())),
        }
    }

    fn vector(&mut self, reader: &Reader<'_>, id: ValueId) -> Result<VectorId> {
        let vector = self.known(reader, id)?;
        self.plan.vectors.push(vector);
        Ok(VectorId(self.plan.vectors.len() - 1))
    }

    fn optional_vector(&mut self, reader: &Reader<'_>, index: usize) -> Result<Option<VectorId>> {
        reader.optional_input(index).map(|id| self.vector(reader, id)).transpose()
    }

    /// A state of the model, by the number of its name.
    fn state(&self, reader: &Reader<'_>, id: ValueId) -> Result<(StateId, &StateKind)> {
        let ValueKind::State(index) = self.graph.value(id).kind else {
            return Err(reader.unsupported("an input that is no state"));
        };
        let name = &self.graph.states[index].name;
        self.states
            .iter()
            .position(|s| s.name == *name)
            .map(|place| (StateId(place), &self.states[place].kind))
            .ok_or_else(|| reader.unsupported(&format!("the state `{name}` is not known")))
    }
}
