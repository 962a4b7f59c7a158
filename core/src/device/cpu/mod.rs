//! The CPU device: executes launch plans with the kernels of `metrale-kernels`.

mod execute;
mod load;
mod registers;
mod states;
mod workspace;

use metrale_graph::Source;
use metrale_kernels::cpu::Cpu;
use metrale_kernels::cpu::attention::Sequence;
use metrale_kernels::cpu::conv::{DraftRows, SlotSequence};
use metrale_kernels::cpu::linear::Activations;

pub use load::{LoadError, WeightLoader};
pub use states::{StateSizes, States, kv_bytes_per_token, recurrent_bytes_per_slot, source_bytes_per_token};
pub use workspace::LOCAL_PAGE;

use crate::lower::Plan;
use registers::Registers;
use workspace::Workspace;

/// A plan with its weights and buffers in memory.
#[derive(Debug)]
pub struct CpuPlan {
    plan: Plan,
    matrices: Vec<metrale_kernels::cpu::Weight>,
    vectors: Vec<Vec<f32>>,
    tables: Vec<Table>,
    registers: Registers,
    workspace: Workspace,
    max_rows: usize,
}

/// Cosines and sines of one rotary embedding for the rows of a step.
#[derive(Debug, Default)]
struct Table {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// What a step needs besides activations. What an entry point does not use may be empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepContext<'a> {
    /// Rows.
    pub rows: usize,
    /// `[rows]` ids to look up: the rows' tokens, the tokens after them (mtp), or source tokens (encoder).
    pub token_ids: &'a [u32],
    /// `[rows]`
    pub positions: &'a [u32],
    /// `[rows]` slot of each row in the caches that this entry point writes: page · block size + offset.
    pub slots: &'a [u32],
    /// The sequences that own the rows.
    pub sequences: &'a [Sequence<'a>],
    /// The same sequences over the pages of their sources.
    pub sources: &'a [Sequence<'a>],
    /// The same sequences with the slots of their recurrent state.
    pub state_slots: &'a [SlotSequence],
    /// Their rows that may be taken back, and those of the step before that were right; empty if there are none.
    pub draft_rows: &'a [DraftRows],
}

/// How numbers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// Products with quantised weights.
    pub activations: Activations,
}

/// A launch that failed, with the author's source line.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}\n  --> {source_line}")]
pub struct LaunchError {
    /// What the kernel said.
    pub message: String,
    /// Where the op was described.
    pub source_line: Source,
}

impl CpuPlan {
    /// Loads a plan for steps of up to `max_rows` rows.
    ///
    /// # Errors
    /// A weight cannot be loaded.
    pub fn new(plan: Plan, loader: &mut WeightLoader<'_>, max_rows: usize) -> Result<Self, LoadError> {
        let matrices = plan.matrices.iter().map(|w| loader.matrix(w)).collect::<Result<Vec<_>, _>>()?;
        let vectors = plan.vectors.iter().map(|v| loader.vector(v)).collect::<Result<Vec<_>, _>>()?;
        let half = |t: &crate::lower::plan::RotaryTable| vectors[t.inv_freq.0].len();
        let table = |t| Table { cos: vec![0.0; max_rows * half(t)], sin: vec![0.0; max_rows * half(t)] };
        let tables = plan.tables.iter().map(table).collect();
        let registers = Registers::new(&plan, max_rows);
        let workspace = Workspace::new(&plan, max_rows)?;
        Ok(Self { plan, matrices, vectors, tables, registers, workspace, max_rows })
    }

    /// Rows of the largest step.
    #[must_use]
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Rows of an input, to be filled before [`CpuPlan::run`].
    #[must_use]
    pub fn input_mut(&mut self, name: &str, rows: usize) -> Option<&mut [f32]> {
        let reg = self.plan.input(name)?;
        Some(self.registers.write(reg, rows))
    }

    /// Rows of an output of the last run.
    #[must_use]
    pub fn output(&self, name: &str, rows: usize) -> Option<&[f32]> {
        let reg = self.plan.output(name)?;
        Some(self.registers.read(reg, rows))
    }

    /// Bytes of matrices that a step of one row reads, embedding tables aside.
    #[must_use]
    pub fn weight_bytes_per_step(&self) -> usize {
        use crate::lower::plan::{Epilogue, Step};
        let bytes = |m: crate::lower::plan::MatrixId| self.matrices[m.0].num_bytes_read();
        let of_step = |step: &Step| match step {
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
        };
        self.plan.steps.iter().map(|s| of_step(&s.step)).sum()
    }

    /// Makes room in the states for up to `max_drafts` rows of each of `num_sequences` that may be taken back.
    pub fn reserve_drafts(&self, states: &mut States, num_sequences: usize, max_drafts: usize) {
        for (state, width) in self.plan.recurrent_inputs() {
            states.reserve_drafts(state, width, num_sequences, max_drafts);
        }
    }

    /// f32 bytes of the activation buffers.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.plan.floats_per_row() * self.max_rows * size_of::<f32>()
    }

    /// Executes every launch in order.
    ///
    /// # Errors
    /// A kernel refused its arguments; the message names the op's source line.
    pub fn run(
        &mut self,
        cpu: &Cpu,
        states: &mut States,
        numerics: Numerics,
        context: &StepContext<'_>,
    ) -> Result<(), LaunchError> {
        execute::run(self, cpu, states, numerics, context)
    }
}
