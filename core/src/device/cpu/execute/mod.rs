//! One kernel call per step of the plan, or a few.

mod attention;
mod experts;
mod recurrent;

use metrale_kernels::KernelError;
use metrale_kernels::cpu::elementwise::{self, Binary, Unary};
use metrale_kernels::cpu::linear::{self, Projection};
use metrale_kernels::cpu::norm::{self, NormWeight};
use metrale_kernels::cpu::rope::{self, Pairing, Tables, TablesMut};
use metrale_kernels::cpu::{Cpu, Weight, embedding, reduce, sinusoid};
use smallvec::SmallVec;

use super::plan::{CpuPlan, Table};
use super::registers::{Registers, Taken};
use super::states::States;
use super::workspace::Workspace;
use super::{LaunchError, Numerics, StepContext};
use crate::device::ImageContext;
use crate::lower::plan::{
    Columns, Combine, Epilogue, Function, Ids, Operand, Plan, Projection as Planned, Reg, Sections, Step,
    Streams, VectorId,
};

type Result<T> = std::result::Result<T, KernelError>;

/// Everything that a launch may touch.
struct Executor<'a> {
    cpu: &'a Cpu,
    states: &'a mut States,
    numerics: Numerics,
    context: &'a StepContext<'a>,
    matrices: &'a [Weight],
    vectors: &'a [Vec<f32>],
    tables: &'a [Table],
    plan: &'a Plan,
    registers: &'a mut Registers,
    workspace: &'a mut Workspace,
}

pub(super) fn run(
    plan: &mut CpuPlan,
    cpu: &Cpu,
    states: &mut States,
    numerics: Numerics,
    context: &StepContext<'_>,
) -> std::result::Result<(), LaunchError> {
    prepare(plan, context)?;
    let mut executor = Executor {
        cpu,
        states,
        numerics,
        context,
        matrices: &plan.matrices,
        vectors: &plan.vectors,
        tables: &plan.tables,
        plan: &plan.plan,
        registers: &mut plan.registers,
        workspace: &mut plan.workspace,
    };
    for planned in &plan.plan.steps {
        executor.launch(&planned.step).map_err(|e| LaunchError::new(&planned.source, &e))?;
    }
    Ok(())
}

/// What depends on positions and sequences only: once per step, for all layers.
fn prepare(plan: &mut CpuPlan, context: &StepContext<'_>) -> Result<()> {
    if let Some(local) = &mut plan.workspace.local {
        local.place(context.sequences)?;
    }
    for (spec, table) in plan.plan.tables.iter().zip(&mut plan.tables) {
        let inv_freq = &plan.vectors[spec.inv_freq.0];
        let len = context.rows * inv_freq.len();
        let tables = TablesMut { cos: &mut table.cos[..len], sin: &mut table.sin[..len] };
        let (streams, factor) = (context.images.streams, spec.attention_factor);
        match spec.streams {
            Streams::One => rope::fill_tables(inv_freq, context.positions, factor, tables)?,
            Streams::Text(Sections { sizes, blocked: false })
            | Streams::Patches(Sections { sizes, blocked: false }) => {
                rope::fill_sectioned_tables(inv_freq, streams, sizes, factor, tables)?;
            }
            Streams::Text(Sections { sizes, .. }) | Streams::Patches(Sections { sizes, .. }) => {
                rope::fill_blocked_tables(inv_freq, streams, sizes, factor, tables)?;
            }
        }
    }
    Ok(())
}

impl Executor<'_> {
    #[allow(clippy::too_many_lines)] // One arm per kind of launch.
    fn launch(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Embed { ids, matrix, out } => {
                let ids = match ids {
                    Ids::Rows => self.context.token_ids,
                    Ids::PositionTaps => self.context.images.taps,
                };
                let (cpu, table) = (self.cpu, &self.matrices[matrix.0]);
                self.writing(*out, |_, out| embedding::gather(cpu, table, ids, out))
            }
            Step::Linear { x, projections } => self.linear(*x, projections),
            Step::HeadLinear { x, heads, matrix, out } => {
                let (cpu, weight, activations) =
                    (self.cpu, &self.matrices[matrix.0], self.numerics.activations);
                self.mapping(*x, *out, |x, out| linear::head_linear(cpu, x, activations, weight, *heads, out))
            }
            Step::RmsNorm { x, weight, zero_centered, eps, width, out } => {
                let (cpu, vectors) = (self.cpu, self.vectors);
                let weight = norm_weight(vectors, *weight, *zero_centered);
                if self.registers.same_buffer(*x, *out) {
                    return self
                        .writing(*out, |_, out| norm::rms_norm_in_place(cpu, out, *width, weight, *eps));
                }
                self.mapping(*x, *out, |x, out| norm::rms_norm(cpu, x, *width, weight, *eps, out))
            }
            Step::LayerNorm { x, weight, bias, eps, width, out } => {
                let (cpu, vectors) = (self.cpu, self.vectors);
                let vector = |id: &Option<VectorId>| id.map(|v| vectors[v.0].as_slice());
                let affine = norm::Affine { weight: vector(weight), bias: vector(bias) };
                self.mapping(*x, *out, |x, out| norm::layer_norm(cpu, x, *width, affine, *eps, out))
            }
            Step::L2Norm { x, eps, width, out } => {
                let cpu = self.cpu;
                self.changing(*x, *out, |out| norm::l2_norm(cpu, out, *width, *eps, 1.0))
            }
            Step::Sinusoid { width, offset, out } => {
                let (cpu, positions) = (self.cpu, self.context.positions);
                self.writing(*out, |_, out| sinusoid::sinusoid(cpu, positions, *width, *offset, out))
            }
            Step::Rope { x, heads, dim, table, interleaved, out } => {
                let half = self.vectors[self.plan.tables[table.0].inv_freq.0].len();
                let (cpu, table, len) = (self.cpu, &self.tables[table.0], self.context.rows * half);
                let tables = Tables { cos: &table.cos[..len], sin: &table.sin[..len], rotary_dim: 2 * half };
                let pairing = if *interleaved { Pairing::Interleaved } else { Pairing::HalfSplit };
                self.changing(*x, *out, |out| rope::rotate(cpu, out, *heads, *dim, tables, pairing))
            }
            Step::KvWrite { state, k, v } => self.kv_write(*state, *k, *v),
            Step::Attention { state, q, how, out } => self.attention(*state, *q, how, *out),
            Step::Index(index) => self.index(index),
            Step::SparseAttention { state, q, select, how, out } => {
                self.sparse_attention(*state, (*q, *select), how, *out)
            }
            Step::LocalAttention { q, k, v, shape, how, out } => {
                self.local_attention(*q, (*k, *v), *shape, how, *out)
            }
            Step::Conv { state, x, weight, kernel, activation, out } => {
                self.conv(*state, *x, (*weight, *kernel), *activation, *out)
            }
            Step::DeltaRule { state, heads, q, k, v, g, beta, out } => {
                self.delta_rule(*state, *heads, [*q, *k, *v, *g, *beta], *out)
            }
            Step::Moe(moe) => self.moe(moe),
            Step::Unary { f, x, out } => {
                let cpu = self.cpu;
                self.changing(*x, *out, |out| {
                    elementwise::unary_in_place(cpu, unary(*f), out);
                    Ok(())
                })
            }
            Step::Binary { f, a, b, width, out } => self.binary(*f, *a, *b, *width, *out),
            Step::Affine { x, factor, shift, out } => {
                let cpu = self.cpu;
                if self.registers.same_buffer(*x, *out) {
                    return self.writing(*out, |_, out| {
                        out.iter_mut().for_each(|v| *v = *v * factor + shift);
                        Ok(())
                    });
                }
                self.mapping(*x, *out, |x, out| elementwise::scale(cpu, x, *factor, *shift, out))
            }
            Step::Clamp { x, low, high, out } => {
                let cpu = self.cpu;
                self.changing(*x, *out, |out| {
                    elementwise::clamp_in_place(cpu, out, *low, *high);
                    Ok(())
                })
            }
            Step::MergeImages { x, out } => {
                let images = self.context.images;
                self.changing(*x, *out, |out| merge_images(images, out))
            }
            Step::Reduce { x, count, inner, factor, out } => {
                let cpu = self.cpu;
                self.mapping(*x, *out, |x, out| reduce::sum_axis(cpu, x, (*count, *inner), *factor, out))
            }
            Step::QkvWrite(_) | Step::GatedHalves { .. } => Err(KernelError::Unsupported {
                op: "step",
                reason: "the plan was made for another device".to_owned(),
            }),
            Step::Convert { x, out } => self.changing(*x, *out, |_| Ok(())),
            Step::Slice { x, columns: Columns { width, start, count }, out } => {
                let from = elementwise::Columns { width: *width, start: *start };
                let to = elementwise::Columns { width: *count, start: 0 };
                self.mapping(*x, *out, |x, out| elementwise::copy_columns(x, from, *count, out, to))
            }
            Step::Concat { parts, out } => self.concat(parts, *out),
        }
    }

    fn concat(&mut self, parts: &[(Reg, usize)], out: Reg) -> Result<()> {
        let rows = self.context.rows;
        let width = parts.iter().map(|p| p.1).sum();
        self.writing(out, |registers, out| {
            let mut start = 0;
            for (part, count) in parts {
                let from = elementwise::Columns { width: *count, start: 0 };
                let to = elementwise::Columns { width, start };
                elementwise::copy_columns(registers.read(*part, rows), from, *count, out, to)?;
                start += count;
            }
            Ok(())
        })
    }

    /// Lends the output, with the other registers to read.
    fn writing(&mut self, out: Reg, f: impl FnOnce(&Registers, &mut [f32]) -> Result<()>) -> Result<()> {
        let mut taken = self.registers.take(out, self.context.rows);
        let result = f(self.registers, taken.slice());
        self.registers.put(taken);
        result
    }

    /// Lends an input and the output, which do not share a buffer.
    fn mapping(&mut self, x: Reg, out: Reg, f: impl FnOnce(&[f32], &mut [f32]) -> Result<()>) -> Result<()> {
        let rows = self.context.rows;
        self.writing(out, |registers, out| f(registers.read(x, rows), out))
    }

    /// Lends the output holding the input.
    fn changing(&mut self, x: Reg, out: Reg, f: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<()> {
        let (rows, in_place) = (self.context.rows, self.registers.same_buffer(x, out));
        self.writing(out, |registers, out| {
            if !in_place {
                out.copy_from_slice(registers.read(x, rows));
            }
            f(out)
        })
    }

    fn linear(&mut self, x: Reg, planned: &[Planned]) -> Result<()> {
        let rows = self.context.rows;
        let mut outs: SmallVec<[Taken; 4]> =
            planned.iter().map(|p| self.registers.take(p.out, rows)).collect();
        let result = {
            let registers = &*self.registers;
            let vector = |id: Option<VectorId>| id.map(|v| self.vectors[v.0].as_slice());
            let mut projections: SmallVec<[Projection<'_>; 4]> = SmallVec::new();
            for (p, out) in planned.iter().zip(&mut outs) {
                let epilogue = match p.epilogue {
                    Epilogue::Store => linear::Epilogue::Store,
                    Epilogue::Residual(r) if registers.same_buffer(r, p.out) => linear::Epilogue::Accumulate,
                    Epilogue::Residual(r) => linear::Epilogue::Residual(registers.read(r, rows)),
                    Epilogue::SiluGate { up, up_bias } => linear::Epilogue::Gated {
                        activation: Unary::Silu.into(),
                        up: &self.matrices[up.0],
                        up_bias: vector(up_bias),
                    },
                };
                let projection = Projection::new(&self.matrices[p.matrix.0], out.slice());
                projections.push(projection.bias(vector(p.bias)).epilogue(epilogue));
            }
            linear::linear(self.cpu, registers.read(x, rows), self.numerics.activations, &mut projections)
        };
        for out in outs {
            self.registers.put(out);
        }
        result
    }

    fn binary(&mut self, f: Combine, a: Reg, b: Operand, width: usize, out: Reg) -> Result<()> {
        let (cpu, rows, vectors) = (self.cpu, self.context.rows, self.vectors);
        let function = match f {
            Combine::Add => Binary::Add,
            Combine::Mul => Binary::Mul,
            Combine::Div => Binary::Div,
        };
        let in_place = self.registers.same_buffer(a, out);
        self.writing(out, |registers, out| {
            let b = match b {
                Operand::Vector(v) => vectors[v.0].as_slice(),
                Operand::Reg(b) => registers.read(b, rows),
                Operand::PerRow(factors) => {
                    if !in_place {
                        out.copy_from_slice(registers.read(a, rows));
                    }
                    let count = out.len() / width.max(1);
                    return elementwise::mul_rows(cpu, out, &registers.read(factors, rows)[..count]);
                }
            };
            if in_place {
                elementwise::binary_in_place(cpu, function, out, b)
            } else {
                elementwise::binary(cpu, function, registers.read(a, rows), b, out)
            }
        })
    }
}

/// Rows that stand for parts of images take what the tower made of them.
fn merge_images(images: ImageContext<'_>, out: &mut [f32]) -> Result<()> {
    let width = out.len() / images.index.len().max(1);
    let limit = images.rows.len() / width.max(1);
    for (position, (row, out)) in images.index.iter().zip(out.chunks_exact_mut(width.max(1))).enumerate() {
        let Some(row) = row.map(|row| row as usize) else { continue };
        let range = row * width..(row + 1) * width;
        let found = images.rows.get(range).ok_or(KernelError::Index {
            op: "merge_rows/1",
            argument: "index",
            position,
            found: row,
            limit,
        })?;
        out.copy_from_slice(found);
    }
    Ok(())
}

fn norm_weight(vectors: &[Vec<f32>], weight: Option<VectorId>, zero_centered: bool) -> NormWeight<'_> {
    match weight {
        None => NormWeight::None,
        Some(v) if zero_centered => NormWeight::ZeroCentered(&vectors[v.0]),
        Some(v) => NormWeight::Plain(&vectors[v.0]),
    }
}

fn unary(f: Function) -> Unary {
    match f {
        Function::Silu => Unary::Silu,
        Function::Sigmoid => Unary::Sigmoid,
        Function::Relu => Unary::Relu,
        Function::Tanh => Unary::Tanh,
        Function::Exp => Unary::Exp,
        Function::Softplus => Unary::Softplus,
        Function::Gelu => Unary::GeluErf,
        Function::GeluTanh => Unary::GeluTanh,
    }
}
