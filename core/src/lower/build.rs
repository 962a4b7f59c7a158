//! One step per op, before any rewrite.

use std::collections::BTreeMap;

use metrale_graph::resolve::{Resolution, ResolvedWeight};
use metrale_graph::{Graph, Node, StateDecl, ValueId, ValueKind};

use super::plan::{
    Attend, Columns, Combine, Epilogue, Function, MatrixId, Operand, Plan, Planned, Projection, Reg,
    RotaryTable, StateId, Step, TableId, Vector, VectorId,
};
use super::{LowerError, Taps};

type Result<T> = std::result::Result<T, LowerError>;

/// Lowers every node in order.
pub(super) fn build(
    graph: &Graph,
    resolution: &Resolution,
    states: &[StateDecl],
    taps: Taps,
) -> Result<Plan> {
    let mut builder = Builder {
        graph,
        resolution,
        states,
        taps,
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
    taps: Taps,
    plan: Plan,
    /// Where activations are.
    regs: BTreeMap<ValueId, Reg>,
    /// Values that are known at load.
    constants: BTreeMap<ValueId, Vector>,
    /// Matrices already in the plan, by canonical name and value.
    matrices: BTreeMap<ValueId, MatrixId>,
}

impl Builder<'_> {
    fn node(&mut self, node: &Node) -> Result<()> {
        match node.op.name {
            "tap/1" if self.taps == Taps::Keep => {
                let reg = self.reg(node, 0)?;
                let (name, index) =
                    (node.attrs.str("name").unwrap_or(""), node.attrs.int("index").unwrap_or(0));
                self.plan.outputs.push((format!("{name}.{index}"), reg));
            }
            "scope/1" | "tap/1" | "info/1" | "state/1" => {}
            "input/1" => self.input(node),
            "output/1" => {
                let reg = self.reg(node, 0)?;
                self.plan.outputs.push((node.attrs.str("name").unwrap_or("").to_owned(), reg));
            }
            "const/1" => {
                let values = node.attrs.floats("values").unwrap_or(&[]).iter().map(|&v| v as f32).collect();
                self.constants.insert(node.outputs[0], Vector::Constant(values));
            }
            "embedding/1" => self.embedding(node)?,
            "linear/1" => self.linear(node)?,
            "rms_norm/1" => self.rms_norm(node)?,
            "reshape/1" | "flatten/1" => {
                let reg = self.reg(node, 0)?;
                self.regs.insert(node.outputs[0], reg);
            }
            "split/1" => self.split(node)?,
            "concat/1" => self.concat(node)?,
            "rope/1" => self.rope(node)?,
            "kv_write/1" => self.kv_write(node)?,
            "attention/1" => self.attention(node)?,
            "add/1" => self.binary(node, Combine::Add)?,
            "mul/1" => self.binary(node, Combine::Mul)?,
            "div/1" => self.binary(node, Combine::Div)?,
            "affine/1" => {
                let (x, out) = (self.reg(node, 0)?, self.new_reg(node.outputs[0]));
                let float = |key: &str| node.attrs.float(key).unwrap_or(0.0) as f32;
                self.push(node, Step::Affine { x, factor: float("factor"), shift: float("shift"), out });
            }
            "silu/1" => self.unary(node, Function::Silu)?,
            "sigmoid/1" => self.unary(node, Function::Sigmoid)?,
            "relu/1" => self.unary(node, Function::Relu)?,
            "tanh/1" => self.unary(node, Function::Tanh)?,
            "exp/1" => self.unary(node, Function::Exp)?,
            "softplus/1" => self.unary(node, Function::Softplus)?,
            "gelu/1" => self.unary(node, Function::Gelu)?,
            "gelu_tanh/1" => self.unary(node, Function::GeluTanh)?,
            other => return Err(LowerError::new(other, "", &node.source)),
        }
        Ok(())
    }

    fn push(&mut self, node: &Node, step: Step) {
        self.plan.steps.push(Planned { step, source: node.source.clone(), layer: node.layer });
    }

    fn unsupported(node: &Node, detail: &str) -> LowerError {
        LowerError::new(node.op.name, detail, &node.source)
    }

    /// The register of a required input.
    fn reg(&self, node: &Node, index: usize) -> Result<Reg> {
        let id = node.input(index);
        self.regs
            .get(&id)
            .copied()
            .ok_or_else(|| Self::unsupported(node, &format!("input {index} is not an activation")))
    }

    /// Floats per row of a value.
    fn row_width(&self, id: ValueId) -> usize {
        self.graph.value(id).shape[1..].iter().filter_map(|d| d.size()).product()
    }

    fn new_reg(&mut self, id: ValueId) -> Reg {
        let reg = Reg(self.plan.widths.len());
        self.plan.widths.push(self.row_width(id));
        self.regs.insert(id, reg);
        reg
    }

    fn input(&mut self, node: &Node) {
        let id = node.outputs[0];
        if self.graph.value(id).kind == ValueKind::Float {
            let reg = self.new_reg(id);
            self.plan.inputs.push((node.attrs.str("name").unwrap_or("").to_owned(), reg));
        }
    }

    fn weight(&self, node: &Node, id: ValueId) -> Result<&ResolvedWeight> {
        self.resolution.weights.get(&id).ok_or_else(|| Self::unsupported(node, "a weight was not resolved"))
    }

    fn matrix(&mut self, node: &Node, index: usize) -> Result<MatrixId> {
        let id = node.input(index);
        if let Some(known) = self.matrices.get(&id) {
            return Ok(*known);
        }
        let weight = self.weight(node, id)?.clone();
        let matrix = MatrixId(self.plan.matrices.len());
        self.plan.matrices.push(weight);
        self.matrices.insert(id, matrix);
        Ok(matrix)
    }

    /// A weight vector or constant.
    fn known(&self, node: &Node, id: ValueId) -> Result<Vector> {
        match self.constants.get(&id) {
            Some(vector) => Ok(vector.clone()),
            None => self.weight(node, id).map(|w| Vector::Weight(w.clone())),
        }
    }

    fn vector(&mut self, node: &Node, id: ValueId) -> Result<VectorId> {
        let vector = self.known(node, id)?;
        self.plan.vectors.push(vector);
        Ok(VectorId(self.plan.vectors.len() - 1))
    }

    fn optional_vector(&mut self, node: &Node, index: usize) -> Result<Option<VectorId>> {
        node.optional_input(index).map(|id| self.vector(node, id)).transpose()
    }

    fn embedding(&mut self, node: &Node) -> Result<()> {
        let matrix = self.matrix(node, 1)?;
        let source = self.graph.producer(node.input(0));
        if source.attrs.str("name") != Some("token_ids") {
            return Err(Self::unsupported(node, "only token ids can be looked up"));
        }
        let out = self.new_reg(node.outputs[0]);
        self.push(node, Step::Embed { matrix, out });
        Ok(())
    }

    fn linear(&mut self, node: &Node) -> Result<()> {
        let x = self.reg(node, 0)?;
        if self.graph.value(node.input(0)).shape.len() != 2 {
            return Err(Self::unsupported(node, "the input must be [T, K]"));
        }
        let matrix = self.matrix(node, 1)?;
        let bias = self.optional_vector(node, 2)?;
        let out = self.new_reg(node.outputs[0]);
        let projection = Projection { matrix, bias, epilogue: Epilogue::Store, out };
        self.push(node, Step::Linear { x, projections: vec![projection] });
        Ok(())
    }

    fn rms_norm(&mut self, node: &Node) -> Result<()> {
        let x = self.reg(node, 0)?;
        let weight = self.optional_vector(node, 1)?;
        let width = self.graph.value(node.input(0)).width().unwrap_or(0);
        let out = self.new_reg(node.outputs[0]);
        let eps = node.attrs.float("eps").unwrap_or(0.0) as f32;
        let zero_centered = node.attrs.bool("zero_centered").unwrap_or(false);
        self.push(node, Step::RmsNorm { x, weight, zero_centered, eps, width, out });
        Ok(())
    }

    fn unary(&mut self, node: &Node, f: Function) -> Result<()> {
        let (x, out) = (self.reg(node, 0)?, self.new_reg(node.outputs[0]));
        self.push(node, Step::Unary { f, x, out });
        Ok(())
    }

    fn binary(&mut self, node: &Node, f: Combine) -> Result<()> {
        let (a_id, b_id) = (node.input(0), node.input(1));
        if !self.regs.contains_key(&a_id) {
            let (a, b) = (self.known(node, a_id)?, self.known(node, b_id)?);
            self.constants.insert(node.outputs[0], Vector::Combined(f, Box::new(a), Box::new(b)));
            return Ok(());
        }
        let a = self.reg(node, 0)?;
        let (a_info, b_info) = (self.graph.value(a_id), self.graph.value(b_id));
        let width = a_info.width().unwrap_or(0);
        let same_but_last = b_info.shape.len() == a_info.shape.len()
            && b_info.width() == Some(1)
            && b_info.shape[..b_info.shape.len() - 1] == a_info.shape[..a_info.shape.len() - 1];
        let b = match self.regs.get(&b_id) {
            Some(b) if b_info.shape == a_info.shape => Operand::Reg(*b),
            Some(b) if same_but_last && f == Combine::Mul => Operand::PerRow(*b),
            None if b_info.fixed_shape() == Some(vec![width]) => Operand::Vector(self.vector(node, b_id)?),
            _ => return Err(Self::unsupported(node, "this broadcast has no kernel")),
        };
        let out = self.new_reg(node.outputs[0]);
        self.push(node, Step::Binary { f, a, b, width, out });
        Ok(())
    }

    /// `(rows before the axis are folded into T, floats per step of the axis)` for a cut or join along an axis.
    fn inner(&self, id: ValueId, axis: usize) -> usize {
        self.graph.value(id).shape[axis + 1..].iter().filter_map(|d| d.size()).product()
    }

    fn split(&mut self, node: &Node) -> Result<()> {
        let x = self.reg(node, 0)?;
        let axis = node.attrs.size("axis").unwrap_or(1);
        let inner = self.inner(node.input(0), axis);
        let sizes = node.attrs.ints("sizes").unwrap_or(&[]);
        let width = sizes.iter().sum::<i64>() as usize * inner;
        let mut start = 0;
        for (size, output) in sizes.iter().zip(&node.outputs) {
            let count = *size as usize * inner;
            let out = self.new_reg(*output);
            self.push(node, Step::Slice { x, columns: Columns { width, start, count }, out });
            start += count;
        }
        Ok(())
    }

    fn concat(&mut self, node: &Node) -> Result<()> {
        let axis = node.attrs.size("axis").unwrap_or(1);
        let mut parts = Vec::new();
        for index in 0..node.inputs.len() {
            let id = node.input(index);
            let size = self.graph.value(id).shape[axis].size().unwrap_or(0);
            parts.push((self.reg(node, index)?, size * self.inner(id, axis)));
        }
        let out = self.new_reg(node.outputs[0]);
        self.push(node, Step::Concat { parts, out });
        Ok(())
    }

    fn rope(&mut self, node: &Node) -> Result<()> {
        let x = self.reg(node, 0)?;
        if self.graph.producer(node.input(1)).attrs.str("name") != Some("positions") {
            return Err(Self::unsupported(node, "only one position stream is supported"));
        }
        let attention_factor = node.attrs.float("attention_factor").unwrap_or(1.0) as f32;
        let inv_freq = self.vector(node, node.input(2))?;
        let table = self.rotary_table(inv_freq, attention_factor);
        let info = self.graph.value(node.input(0));
        let (heads, dim) = (info.shape[1].size().unwrap_or(0), info.shape[2].size().unwrap_or(0));
        let interleaved = node.attrs.str("style") == Some("interleaved");
        let out = self.new_reg(node.outputs[0]);
        self.push(node, Step::Rope { x, heads, dim, table, interleaved, out });
        Ok(())
    }

    /// Layers that rotate alike share a table.
    fn rotary_table(&mut self, inv_freq: VectorId, attention_factor: f32) -> TableId {
        let text = |v: VectorId| format!("{:?}", self.plan.vectors[v.0]);
        let same =
            |t: &RotaryTable| t.attention_factor == attention_factor && text(t.inv_freq) == text(inv_freq);
        if let Some(known) = self.plan.tables.iter().position(same) {
            TableId(known)
        } else {
            self.plan.tables.push(RotaryTable { inv_freq, attention_factor });
            TableId(self.plan.tables.len() - 1)
        }
    }

    fn state(&self, node: &Node, id: ValueId) -> Result<StateId> {
        let ValueKind::State(index) = self.graph.value(id).kind else {
            return Err(Self::unsupported(node, "attention without a state has no kernel"));
        };
        let name = &self.graph.states[index].name;
        let position = self.states.iter().position(|s| s.name == *name);
        position
            .map(StateId)
            .ok_or_else(|| Self::unsupported(node, &format!("the state `{name}` is not known")))
    }

    fn kv_write(&mut self, node: &Node) -> Result<()> {
        let state = self.state(node, node.input(0))?;
        let k = self.reg(node, 1)?;
        if node.optional_input(2).is_none() {
            return Err(Self::unsupported(node, "values that are a prefix of the keys have no kernel"));
        }
        let v = self.reg(node, 2)?;
        self.push(node, Step::KvWrite { state, k, v });
        Ok(())
    }

    fn attention(&mut self, node: &Node) -> Result<()> {
        let q = self.reg(node, 0)?;
        if let Some(index) = [4, 5].into_iter().find(|&i| node.optional_input(i).is_some()) {
            return Err(Self::unsupported(
                node,
                &format!("the input `{}` has no kernel", node.op.inputs[index].name),
            ));
        }
        let Some(cache) = node.optional_input(1) else {
            return Err(Self::unsupported(node, "attention without a state has no kernel"));
        };
        let state = self.state(node, cache)?;
        let how = Attend {
            heads: self.graph.value(node.input(0)).shape[1].size().unwrap_or(0),
            scale: node.attrs.float("scale").unwrap_or(1.0) as f32,
            causal: node.attrs.str("mask") == Some("causal"),
            window: node.attrs.size("window"),
            softcap: node.attrs.float("softcap").map(|c| c as f32),
        };
        let out = self.new_reg(node.outputs[0]);
        self.push(node, Step::Attention { state, q, how, out });
        Ok(())
    }
}
