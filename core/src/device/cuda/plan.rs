//! A plan with its weights and buffers on the device.

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;
use metrale_kernels::cuda::{Buffer, Cuda, Indices, Weight};
use metrale_kernels::{KernelError, Result};

use super::execute;
use super::inputs::{Needs, StepInputs};
use super::load::WeightLoader;
use super::local::LocalPages;
use super::registers::Registers;
use super::states::States;
use crate::device::work::{DecodeStep, name};
use crate::device::{LaunchError, LoadError, Work};
use crate::lower::Plan;
use crate::lower::plan::{ElementType, Epilogue, MatrixId, Moe, Operand, RotaryTable, Step};

/// A plan, ready to run.
#[derive(Debug)]
pub(super) struct CudaPlan {
    pub(super) plan: Plan,
    pub(super) needs: Needs,
    pub(super) matrices: Vec<Arc<Weight>>,
    pub(super) vectors: Vec<Buffer<f32>>,
    /// Vectors that are operands of bf16 activations.
    pub(super) narrow: HashMap<usize, Buffer<bf16>>,
    pub(super) tables: Vec<Table>,
    pub(super) registers: Registers,
    pub(super) workspace: Workspace,
    max_rows: usize,
}

/// Cosines and sines of one rotary embedding for the rows of a step.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) cos: Buffer<f32>,
    pub(super) sin: Buffer<f32>,
    /// R/2
    pub(super) half: usize,
}

/// Buffers that the launches of a plan share.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) experts: Option<ExpertSpace>,
    pub(super) local: Option<LocalPages>,
}

/// What the launches of a mixture of experts hand to each other.
#[derive(Debug)]
pub(super) struct ExpertSpace {
    /// Chosen experts `[rows, top_k]`.
    pub(super) chosen: Indices,
    /// Their weights `[rows, top_k]`.
    pub(super) weights: Buffer<f32>,
    /// Products with the second matrix `[rows, top_k, I]`.
    pub(super) up: Buffer<u8>,
}

/// There is no kernel that adds them.
fn refuse_expert_biases(plan: &Plan) -> Result<()> {
    let has_biases = |step: &Step| match step {
        Step::Moe(moe) => moe.experts.gate_bias.is_some() || moe.experts.down_bias.is_some(),
        _ => false,
    };
    if plan.steps.iter().any(|launch| has_biases(&launch.step)) {
        return Err(KernelError::Unsupported {
            op: "moe/1",
            reason: "experts with biases have no cuda kernel; use --device cpu".to_owned(),
        });
    }
    Ok(())
}

impl CudaPlan {
    /// Loads a plan for steps of up to `max_rows` rows.
    pub(super) fn new(
        cuda: &Cuda,
        plan: Plan,
        loader: &mut WeightLoader<'_>,
        max_rows: usize,
    ) -> std::result::Result<Self, LoadError> {
        refuse_expert_biases(&plan)?;
        let matrices =
            plan.matrices.iter().map(|w| loader.matrix(w)).collect::<std::result::Result<Vec<_>, _>>()?;
        let mut vectors = Vec::new();
        let mut narrow = HashMap::new();
        let narrowed = narrowed(&plan);
        for (i, vector) in plan.vectors.iter().enumerate() {
            let values = loader.vector(vector)?;
            if narrowed.contains(&i) {
                let values: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
                narrow.insert(i, Buffer::from_slice(cuda, &values)?);
            }
            vectors.push(loader.upload(&values)?);
        }
        let table = |t: &RotaryTable| {
            let half = vectors[t.inv_freq.0].len();
            let zeros = || Buffer::zeroed(cuda, max_rows * half);
            Ok(Table { cos: zeros()?, sin: zeros()?, half })
        };
        let tables = plan.tables.iter().map(table).collect::<Result<_>>()?;
        let registers = Registers::new(cuda, &plan, max_rows)?;
        let workspace = Workspace::new(cuda, &plan, max_rows)?;
        let needs = Needs::of(&plan, &matrices);
        Ok(Self { plan, needs, matrices, vectors, narrow, tables, registers, workspace, max_rows })
    }

    /// Rows of the largest step.
    pub(super) fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Executes every launch in order.
    pub(super) fn run(
        &mut self,
        cuda: &Cuda,
        states: &mut States,
        inputs: &StepInputs,
    ) -> std::result::Result<(), LaunchError> {
        execute::run(self, cuda, states, inputs)
    }

    /// The first `rows` rows of an output as f32.
    pub(super) fn output(&self, cuda: &Cuda, name: &str, rows: usize) -> Result<Option<Vec<f32>>> {
        let Some(reg) = self.plan.output(name) else { return Ok(None) };
        Ok(Some(match self.registers.type_of(reg) {
            ElementType::F32 => self.registers.read::<f32>(reg, rows)?.to_vec(cuda)?,
            ElementType::BF16 => {
                let values = self.registers.read::<bf16>(reg, rows)?.to_vec(cuda)?;
                values.into_iter().map(bf16::to_f32).collect()
            }
        }))
    }

    /// Fills the first rows of an input.
    pub(super) fn write_input(&mut self, cuda: &Cuda, name: &str, values: &[f32]) -> Result<()> {
        let Some(reg) = self.plan.input(name) else { return Ok(()) };
        let rows = values.len() / self.registers.width(reg).max(1);
        match self.registers.type_of(reg) {
            ElementType::F32 => self.registers.write::<f32>(reg, rows)?.upload(cuda, values),
            ElementType::BF16 => {
                let values: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
                self.registers.write(reg, rows)?.upload(cuda, &values)
            }
        }
    }

    /// Values of an input per row.
    pub(super) fn input_width(&self, name: &str) -> Option<usize> {
        self.plan.input(name).map(|reg| self.registers.width(reg))
    }

    /// Bytes of matrices that a step of one row reads, embedding tables aside.
    pub(super) fn weight_bytes_per_step(&self) -> usize {
        self.plan.steps.iter().map(|s| self.weight_bytes(&s.step)).sum()
    }

    /// Bytes of matrices that a step of one row reads in a launch.
    pub(super) fn weight_bytes(&self, step: &Step) -> usize {
        let bytes = |m: MatrixId| self.matrices[m.0].num_bytes();
        match step {
            Step::Linear { projections, .. } => projections
                .iter()
                .map(|p| match p.epilogue {
                    Epilogue::SiluGate { up, .. } => bytes(p.matrix) + bytes(up),
                    _ => bytes(p.matrix),
                })
                .sum(),
            Step::Moe(moe) => {
                let experts = moe.experts;
                let all = bytes(experts.gate) + bytes(experts.down) + experts.up.map_or(0, bytes);
                all / experts.count * moe.top_k
            }
            _ => 0,
        }
    }

    /// What one launch of a decode step must read and compute.
    pub(super) fn work(&self, states: &States, step: &Step, num_seqs: usize, context: usize) -> Work {
        let decode = DecodeStep { num_seqs, context, kv_element: states.kv_element() };
        let bytes = |m: MatrixId| self.matrices[m.0].num_bytes();
        decode.work(&self.plan, step, &bytes, &|state| states.heads(state))
    }

    /// Launches by what they are, in the order of their first.
    pub(super) fn parts(&self) -> Vec<(String, Vec<usize>)> {
        let mut parts: Vec<(String, Vec<usize>)> = Vec::new();
        for (i, planned) in self.plan.steps.iter().enumerate() {
            let name = name(&self.plan, &planned.step);
            match parts.iter_mut().find(|(known, _)| *known == name) {
                Some((_, steps)) => steps.push(i),
                None => parts.push((name, vec![i])),
            }
        }
        parts
    }

    /// Executes some launches of the plan only.
    pub(super) fn run_steps(
        &mut self,
        cuda: &Cuda,
        states: &mut States,
        inputs: &StepInputs,
        steps: &[usize],
    ) -> std::result::Result<(), LaunchError> {
        execute::run_steps(self, cuda, states, inputs, steps)
    }

    /// Bytes of the activation buffers.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.plan.bytes_per_row() * self.max_rows
    }
}

/// Vectors that are operands of bf16 activations.
fn narrowed(plan: &Plan) -> Vec<usize> {
    let of = |step: &Step| match step {
        Step::Binary { b: Operand::Vector(v), out, .. } if plan.types[out.0] == ElementType::BF16 => {
            Some(v.0)
        }
        _ => None,
    };
    plan.steps.iter().filter_map(|s| of(&s.step)).collect()
}

impl Workspace {
    fn new(cuda: &Cuda, plan: &Plan, max_rows: usize) -> Result<Self> {
        let (mut shapes, mut pairs, mut up_bytes, mut local_type) = (Vec::new(), 0, 0, ElementType::F32);
        for planned in &plan.steps {
            match &planned.step {
                Step::Moe(moe) => {
                    let Moe { inner, top_k, .. } = **moe;
                    pairs = pairs.max(max_rows * top_k);
                    up_bytes = up_bytes.max(max_rows * plan.row_bytes(inner));
                }
                Step::LocalAttention { shape, q, .. } => {
                    local_type = plan.types[q.0];
                    if !shapes.contains(shape) {
                        shapes.push(*shape);
                    }
                }
                _ => {}
            }
        }
        let experts = (pairs > 0)
            .then(|| {
                Result::Ok(ExpertSpace {
                    chosen: Indices::new(cuda, pairs)?,
                    weights: Buffer::zeroed(cuda, pairs)?,
                    up: Buffer::zeroed(cuda, up_bytes)?,
                })
            })
            .transpose()?;
        let local =
            (!shapes.is_empty()).then(|| LocalPages::new(cuda, &shapes, local_type, max_rows)).transpose()?;
        Ok(Self { experts, local })
    }
}
