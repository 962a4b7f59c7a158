//! A plan with its weights and buffers in memory.

use metrale_kernels::cpu::Cpu;

use super::load::WeightLoader;
use super::registers::Registers;
use super::states::States;
use super::workspace::Workspace;
use super::{LaunchError, LoadError, Numerics, StepContext, Work, execute};
use crate::device::work::DecodeStep;
use crate::lower::Plan;
use crate::lower::plan::{Epilogue, MatrixId, RotaryTable, Step};

/// A plan, ready to run.
#[derive(Debug)]
pub(super) struct CpuPlan {
    pub(super) plan: Plan,
    pub(super) matrices: Vec<metrale_kernels::cpu::Weight>,
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) tables: Vec<Table>,
    pub(super) registers: Registers,
    pub(super) workspace: Workspace,
    max_rows: usize,
}

/// Cosines and sines of one rotary embedding for the rows of a step.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
}

impl CpuPlan {
    /// Loads a plan for steps of up to `max_rows` rows.
    ///
    /// # Errors
    /// A weight cannot be loaded.
    pub(super) fn new(plan: Plan, loader: &mut WeightLoader<'_>, max_rows: usize) -> Result<Self, LoadError> {
        let matrices = plan.matrices.iter().map(|w| loader.matrix(w)).collect::<Result<Vec<_>, _>>()?;
        let vectors =
            plan.vectors.iter().map(|v| loader.checkpoint.vector(v)).collect::<Result<Vec<_>, _>>()?;
        let half = |t: &RotaryTable| vectors[t.inv_freq.0].len();
        let table = |t| Table { cos: vec![0.0; max_rows * half(t)], sin: vec![0.0; max_rows * half(t)] };
        let tables = plan.tables.iter().map(table).collect();
        let registers = Registers::new(&plan, max_rows);
        let workspace = Workspace::new(&plan, max_rows)?;
        Ok(Self { plan, matrices, vectors, tables, registers, workspace, max_rows })
    }

    /// Rows of the largest step.
    pub(super) fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Rows of an input, to be filled before [`CpuPlan::run`].
    pub(super) fn input_mut(&mut self, name: &str, rows: usize) -> Option<&mut [f32]> {
        let reg = self.plan.input(name)?;
        Some(self.registers.write(reg, rows))
    }

    /// Rows of an output of the last run.
    pub(super) fn output(&self, name: &str, rows: usize) -> Option<&[f32]> {
        let reg = self.plan.output(name)?;
        Some(self.registers.read(reg, rows))
    }

    /// Bytes of matrices that a step of one row reads, embedding tables aside.
    pub(super) fn weight_bytes_per_step(&self) -> usize {
        let bytes = |m: MatrixId| self.matrices[m.0].num_bytes_read();
        let of_step = |step: &Step| match step {
            Step::Linear { projections, .. } => projections
                .iter()
                .map(|p| match p.epilogue {
                    Epilogue::SiluGate { up, .. } => bytes(p.matrix) + bytes(up),
                    _ => bytes(p.matrix),
                })
                .sum(),
            Step::HeadLinear { matrix, .. } => bytes(*matrix),
            Step::Moe(moe) => {
                let experts = moe.experts;
                let all = bytes(experts.gate) + bytes(experts.down) + experts.up.map_or(0, bytes);
                all / experts.count * moe.top_k
            }
            _ => 0,
        };
        self.plan.steps.iter().map(|s| of_step(&s.step)).sum()
    }

    /// Values of an output per row.
    pub(super) fn output_width(&self, name: &str) -> Option<usize> {
        self.plan.output(name).map(|reg| self.plan.widths[reg.0])
    }

    /// What a decode step must read and compute.
    pub(super) fn work(&self, states: &States, num_seqs: usize, context: usize) -> Work {
        let mut work = Work::default();
        for planned in &self.plan.steps {
            let step = DecodeStep { num_seqs, context, kv_element: states.kv_element() };
            let bytes = |m: MatrixId| self.matrices[m.0].num_bytes_read();
            work += step.work(&self.plan, &planned.step, &bytes, &|state| states.heads(state));
        }
        work
    }

    /// Bytes of the activation buffers.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.plan.bytes_per_row() * self.max_rows
    }

    /// Executes every launch in order.
    ///
    /// # Errors
    /// A kernel refused its arguments; the message names the op's source line.
    pub(super) fn run(
        &mut self,
        cpu: &Cpu,
        states: &mut States,
        numerics: Numerics,
        context: &StepContext<'_>,
    ) -> Result<(), LaunchError> {
        execute::run(self, cpu, states, numerics, context)
    }
}
