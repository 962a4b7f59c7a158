//! One launcher call per step of the plan, or a few.

mod attention;
mod experts;
mod recurrent;

use std::sync::Arc;

use half::bf16;
use metrale_kernels::cuda::elementwise::{self, Binary, Unary};
use metrale_kernels::cuda::linear::{self, linear};
use metrale_kernels::cuda::norm::{self, NormWeight};
use metrale_kernels::cuda::rope::{self, Pairing, Tables, TablesMut};
use metrale_kernels::cuda::{Buffer, Cuda, Element, Indices, View, ViewMut, Weight, embedding, sinusoid};
use metrale_kernels::{KernelError, Result};

use super::inputs::StepInputs;
use super::plan::{CudaPlan, Table, Workspace};
use super::registers::{Registers, Taken};
use super::states::States;
use crate::device::{LaunchError, no_such};
use crate::lower::plan::{
    Columns, Combine, ElementType, Epilogue, Function, Operand, Projection, Reg, Step, TableId, VectorId,
};

/// Everything that a launch may touch.
struct Executor<'a> {
    cuda: &'a Cuda,
    states: &'a mut States,
    inputs: &'a StepInputs,
    matrices: &'a [Arc<Weight>],
    vectors: &'a [Buffer<f32>],
    narrow: &'a std::collections::HashMap<usize, Buffer<bf16>>,
    tables: &'a [Table],
    registers: &'a mut Registers,
    workspace: &'a mut Workspace,
}

/// Runs `$body` with the element type of a register as `$T`.
macro_rules! by_type {
    ($of:expr, $T:ident => $body:expr) => {
        match $of {
            ElementType::F32 => {
                type $T = f32;
                $body
            }
            ElementType::BF16 => {
                type $T = bf16;
                $body
            }
        }
    };
}

pub(super) fn run(
    plan: &mut CudaPlan,
    cuda: &Cuda,
    states: &mut States,
    inputs: &StepInputs,
) -> std::result::Result<(), LaunchError> {
    fill_tables(plan, cuda, inputs)?;
    let all: Vec<usize> = (0..plan.plan.steps.len()).collect();
    run_steps(plan, cuda, states, inputs, &all)
}

/// Some launches of a plan.
pub(super) fn run_steps(
    plan: &mut CudaPlan,
    cuda: &Cuda,
    states: &mut States,
    inputs: &StepInputs,
    steps: &[usize],
) -> std::result::Result<(), LaunchError> {
    let mut executor = Executor {
        cuda,
        states,
        inputs,
        matrices: &plan.matrices,
        vectors: &plan.vectors,
        narrow: &plan.narrow,
        tables: &plan.tables,
        registers: &mut plan.registers,
        workspace: &mut plan.workspace,
    };
    for planned in steps.iter().map(|&i| &plan.plan.steps[i]) {
        executor.launch(&planned.step).map_err(|e| LaunchError::new(&planned.source, &e))?;
    }
    Ok(())
}

/// What depends on positions only: once per step, for all layers.
fn fill_tables(plan: &mut CudaPlan, cuda: &Cuda, inputs: &StepInputs) -> Result<()> {
    let Some(positions) = &inputs.positions else { return Ok(()) };
    for (spec, table) in plan.plan.tables.iter().zip(&mut plan.tables) {
        let len = positions.len() * table.half;
        let (mut cos, mut sin) = (table.cos.view_mut(), table.sin.view_mut());
        let mut tables = TablesMut { cos: cos.range(0..len)?, sin: sin.range(0..len)? };
        let inv_freq = plan.vectors[spec.inv_freq.0].view();
        rope::fill_tables(cuda, inv_freq, positions, spec.attention_factor, &mut tables)?;
    }
    Ok(())
}

/// Copies rows of an output of one plan to the first rows of an input of another.
pub(super) fn gather(
    cuda: &Cuda,
    (from, output, rows): (&CudaPlan, &str, usize),
    wanted: &Indices,
    (to, input): (&mut CudaPlan, &str),
) -> std::result::Result<(), LaunchError> {
    let source = from.plan.output(output).ok_or_else(|| no_such("output", output))?;
    let target = to.plan.input(input).ok_or_else(|| no_such("input", input))?;
    by_type!(from.registers.type_of(source), T => {
        let x: View<'_, T> = from.registers.read(source, rows)?;
        let mut out = to.registers.write::<T>(target, wanted.len())?;
        Ok(embedding::gather_rows(cuda, x, from.registers.width(source), wanted, &mut out)?)
    })
}

/// A step that does not come here from a plan for this device.
fn unsupported(reason: &str) -> KernelError {
    KernelError::Unsupported { op: "step", reason: reason.to_owned() }
}

impl Executor<'_> {
    fn launch(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Linear { x, projections } => projections.iter().try_for_each(|p| self.linear(*x, p)),
            Step::KvWrite { state, k, v } => {
                let v = v.ok_or_else(|| unsupported("lowering refuses keys alone for this device"))?;
                by_type!(self.type_of(*k), T => self.kv_write::<T>(*state, *k, v))
            }
            Step::QkvWrite(qkv) => by_type!(self.type_of(qkv.x), T => self.qkv_write::<T>(qkv)),
            Step::Attention { state, q, how, out } => {
                by_type!(self.type_of(*q), T => self.attention::<T>(*state, *q, how, *out))
            }
            Step::LocalAttention { q, k, v, shape, how, out } => {
                by_type!(self.type_of(*q), T => self.local_attention::<T>(*q, (*k, *v), *shape, how, *out))
            }
            Step::Conv { state, x, weight, kernel, activation, out } => {
                by_type!(self.type_of(*x), T => self.conv::<T>(*state, *x, (*weight, *kernel), *activation, *out))
            }
            Step::DeltaRule { state, heads, q, k, v, g, beta, out } => {
                by_type!(self.type_of(*q), T => self.delta_rule::<T>(*state, *heads, [*q, *k, *v], [*g, *beta], *out))
            }
            Step::Moe(moe) => by_type!(self.type_of(moe.x), T => self.moe::<T>(moe)),
            Step::Convert { x, out } => self.convert(*x, *out),
            Step::HeadLinear { .. } | Step::Index(_) | Step::SparseAttention { .. } => {
                Err(unsupported("lowering refuses it for this device"))
            }
            // Not planned for this device.
            Step::MergeImages { .. } | Step::Reduce { .. } => Err(KernelError::Unsupported {
                op: "vision",
                reason: "the cuda device has no kernel for it".to_owned(),
            }),
            Step::Embed { out, .. }
            | Step::RmsNorm { out, .. }
            | Step::LayerNorm { out, .. }
            | Step::L2Norm { out, .. }
            | Step::Sinusoid { out, .. }
            | Step::Rope { out, .. }
            | Step::Unary { out, .. }
            | Step::Binary { out, .. }
            | Step::Affine { out, .. }
            | Step::GatedHalves { out, .. }
            | Step::Clamp { out, .. }
            | Step::Slice { out, .. }
            | Step::Concat { out, .. } => by_type!(self.type_of(*out), T => self.row_by_row::<T>(step)),
        }
    }

    /// Steps whose inputs and outputs have one type.
    fn row_by_row<T: Element>(&mut self, step: &Step) -> Result<()> {
        let (cuda, vectors) = (self.cuda, self.vectors);
        match step {
            Step::Embed { matrix, out, .. } => {
                let ids = given(self.inputs.ids.as_ref(), "ids")?;
                let table = &self.matrices[matrix.0];
                self.writing::<T>(*out, |_, out| embedding::gather(cuda, table, ids, out))
            }
            Step::RmsNorm { x, weight, zero_centered, eps, width, out } => {
                let weight = norm_weight(vectors, *weight, *zero_centered);
                if self.registers.same_buffer(*x, *out) {
                    return self.writing::<T>(*out, |_, out| {
                        norm::rms_norm_in_place(cuda, out, *width, weight, *eps)
                    });
                }
                self.mapping::<T>(*x, *out, |x, out| norm::rms_norm(cuda, x, *width, weight, *eps, out))
            }
            Step::LayerNorm { x, weight, bias, eps, width, out } => {
                let vector = |id: &Option<VectorId>| id.map(|v| vectors[v.0].view());
                let affine = norm::Affine { weight: vector(weight), bias: vector(bias) };
                self.mapping::<T>(*x, *out, |x, out| norm::layer_norm(cuda, x, *width, affine, *eps, out))
            }
            Step::L2Norm { x, eps, width, out } => {
                self.changing::<T>(*x, *out, |out| norm::l2_norm(cuda, out, *width, *eps, 1.0))
            }
            Step::Sinusoid { width, offset, out } => {
                let positions = given(self.inputs.positions.as_ref(), "positions")?;
                self.writing::<T>(*out, |_, out| sinusoid::sinusoid(cuda, positions, *width, *offset, out))
            }
            Step::Rope { x, heads, dim, table, interleaved, out } => {
                let (tables, pairing) = rotation(self.tables, self.inputs.rows, (*table, *interleaved))?;
                self.changing::<T>(*x, *out, |out| rope::rotate(cuda, out, *heads, *dim, tables, pairing))
            }
            Step::Unary { f, x, out } => {
                self.changing::<T>(*x, *out, |out| elementwise::unary_in_place(cuda, unary(*f), out))
            }
            Step::Binary { f, a, b, width, out } => self.binary::<T>(*f, *a, *b, *width, *out),
            Step::Affine { x, factor, shift, out } => {
                if self.registers.same_buffer(*x, *out) {
                    return self.writing::<T>(*out, |_, out| {
                        elementwise::scale_in_place(cuda, out, *factor, *shift)
                    });
                }
                self.mapping::<T>(*x, *out, |x, out| elementwise::scale(cuda, x, *factor, *shift, out))
            }
            Step::GatedHalves { f, x, out } => {
                let width = self.registers.width(*out);
                self.mapping::<T>(*x, *out, |x, out| {
                    elementwise::gated_halves(cuda, unary(*f), x, width, out)
                })
            }
            Step::Clamp { x, low, high, out } => {
                self.changing::<T>(*x, *out, |out| elementwise::clamp_in_place(cuda, out, *low, *high))
            }
            Step::Slice { x, columns: Columns { width, start, count }, out } => {
                let from = elementwise::Columns { width: *width, start: *start };
                let to = elementwise::Columns { width: *count, start: 0 };
                self.mapping::<T>(*x, *out, |x, out| {
                    elementwise::copy_columns(cuda, x, from, *count, out, to)
                })
            }
            Step::Concat { parts, out } => {
                let (rows, width) = (self.inputs.rows, parts.iter().map(|p| p.1).sum());
                self.writing::<T>(*out, |registers, out| {
                    let mut start = 0;
                    for (part, count) in parts {
                        let from = elementwise::Columns { width: *count, start: 0 };
                        let to = elementwise::Columns { width, start };
                        elementwise::copy_columns(cuda, registers.read(*part, rows)?, from, *count, out, to)?;
                        start += count;
                    }
                    Ok(())
                })
            }
            _ => Err(unsupported("not computed row by row")),
        }
    }

    fn type_of(&self, reg: Reg) -> ElementType {
        self.registers.type_of(reg)
    }

    /// Lends the output, with the other registers to read.
    fn writing<T: Element>(
        &mut self,
        out: Reg,
        f: impl FnOnce(&Registers, &mut ViewMut<'_, T>) -> Result<()>,
    ) -> Result<()> {
        let mut taken: Taken = self.registers.take::<T>(out, self.inputs.rows)?;
        let result = taken.elements().and_then(|mut out| f(self.registers, &mut out));
        self.registers.put(taken);
        result
    }

    /// Lends an input and the output, which do not share a buffer.
    fn mapping<T: Element>(
        &mut self,
        x: Reg,
        out: Reg,
        f: impl FnOnce(View<'_, T>, &mut ViewMut<'_, T>) -> Result<()>,
    ) -> Result<()> {
        let rows = self.inputs.rows;
        self.writing(out, |registers, out| f(registers.read(x, rows)?, out))
    }

    /// Lends the output holding the input.
    fn changing<T: Element>(
        &mut self,
        x: Reg,
        out: Reg,
        f: impl FnOnce(&mut ViewMut<'_, T>) -> Result<()>,
    ) -> Result<()> {
        let (cuda, rows, in_place) = (self.cuda, self.inputs.rows, self.registers.same_buffer(x, out));
        self.writing(out, |registers, out| {
            if !in_place {
                out.copy_from(cuda, registers.read(x, rows)?)?;
            }
            f(out)
        })
    }

    fn convert(&mut self, x: Reg, out: Reg) -> Result<()> {
        let (cuda, rows) = (self.cuda, self.inputs.rows);
        match (self.type_of(x), self.type_of(out)) {
            (ElementType::F32, ElementType::BF16) => self.writing::<bf16>(out, |registers, out| {
                elementwise::to_bf16(cuda, registers.read(x, rows)?, out)
            }),
            (ElementType::BF16, ElementType::F32) => self.writing::<f32>(out, |registers, out| {
                elementwise::to_f32(cuda, registers.read(x, rows)?, out)
            }),
            (of, _) => by_type!(of, T => self.changing::<T>(x, out, |_| Ok(()))),
        }
    }

    fn linear(&mut self, x: Reg, projection: &Projection) -> Result<()> {
        match (self.type_of(x), self.type_of(projection.out)) {
            (ElementType::F32, ElementType::F32) => self.project::<f32, f32>(x, projection),
            (ElementType::BF16, ElementType::BF16) => self.project::<bf16, bf16>(x, projection),
            (ElementType::BF16, ElementType::F32) => self.project::<bf16, f32>(x, projection),
            (ElementType::F32, ElementType::BF16) => {
                let reason = "f32 activations with a bf16 result".to_owned();
                Err(KernelError::Unsupported { op: "linear", reason })
            }
        }
    }

    fn project<X: Element, O: Element>(&mut self, x: Reg, projection: &Projection) -> Result<()> {
        let (cuda, rows) = (self.cuda, self.inputs.rows);
        let weight = &self.matrices[projection.matrix.0];
        let bias = projection.bias.map(|v| self.vectors[v.0].view());
        let Projection { epilogue, out, .. } = *projection;
        self.writing::<O>(out, |registers, to| {
            let epilogue = match epilogue {
                Epilogue::Store => linear::Epilogue::Store,
                Epilogue::Residual(r) if registers.same_buffer(r, out) => linear::Epilogue::Accumulate,
                Epilogue::Residual(r) => linear::Epilogue::Residual(registers.read(r, rows)?),
                Epilogue::SiluGate { .. } => {
                    let reason = "a gated product has no kernel".to_owned();
                    return Err(KernelError::Unsupported { op: "linear", reason });
                }
            };
            linear(cuda, registers.read::<X>(x, rows)?, weight, bias, epilogue, to)
        })
    }

    fn binary<T: Element>(&mut self, f: Combine, a: Reg, b: Operand, width: usize, out: Reg) -> Result<()> {
        let (cuda, rows, vectors, narrow) = (self.cuda, self.inputs.rows, self.vectors, self.narrow);
        let function = match f {
            Combine::Add => Binary::Add,
            Combine::Mul => Binary::Mul,
            Combine::Div => Binary::Div,
        };
        let in_place = self.registers.same_buffer(a, out);
        match b {
            // Vectors are kept in f32, and in bf16 where they meet bf16.
            Operand::Vector(v) => match self.type_of(out) {
                ElementType::F32 => {
                    self.combine(function, (a, out), in_place, Second::Vector(vectors[v.0].view()))
                }
                ElementType::BF16 => {
                    let vector = given(narrow.get(&v.0), "vector in bf16")?;
                    self.combine(function, (a, out), in_place, Second::Vector(vector.view()))
                }
            },
            Operand::Reg(b) => self.combine::<T>(function, (a, out), in_place, Second::Reg(b)),
            Operand::PerRow(factors) => self.writing::<T>(out, |registers, out| {
                if !in_place {
                    out.copy_from(cuda, registers.read(a, rows)?)?;
                }
                let count = out.len() / width.max(1);
                elementwise::mul_rows(cuda, out, registers.read::<f32>(factors, rows)?.range(0..count)?)
            }),
        }
    }

    fn combine<T: Element>(
        &mut self,
        f: Binary,
        (a, out): (Reg, Reg),
        in_place: bool,
        b: Second<'_, T>,
    ) -> Result<()> {
        let (cuda, rows) = (self.cuda, self.inputs.rows);
        self.writing::<T>(out, |registers, out| {
            let b = match b {
                Second::Reg(b) => registers.read(b, rows)?,
                Second::Vector(vector) => vector,
            };
            if in_place {
                elementwise::binary_in_place(cuda, f, out, b)
            } else {
                elementwise::binary(cuda, f, registers.read(a, rows)?, b, out)
            }
        })
    }
}

/// A second operand.
enum Second<'a, T> {
    Reg(Reg),
    Vector(View<'a, T>),
}

fn rotation(
    tables: &[Table],
    rows: usize,
    (table, interleaved): (TableId, bool),
) -> Result<(Tables<'_>, Pairing)> {
    let table = &tables[table.0];
    let len = rows * table.half;
    let tables = Tables {
        cos: table.cos.view().range(0..len)?,
        sin: table.sin.view().range(0..len)?,
        rotary_dim: 2 * table.half,
    };
    Ok((tables, if interleaved { Pairing::Interleaved } else { Pairing::HalfSplit }))
}

/// Something that the plan of the step asked for.
fn given<'a, V>(value: Option<&'a V>, what: &str) -> Result<&'a V> {
    value.ok_or_else(|| KernelError::Unsupported { op: "step", reason: format!("the step has no {what}") })
}

fn norm_weight(vectors: &[Buffer<f32>], weight: Option<VectorId>, zero_centered: bool) -> NormWeight<'_> {
    match weight {
        None => NormWeight::None,
        Some(v) if zero_centered => NormWeight::ZeroCentered(vectors[v.0].view()),
        Some(v) => NormWeight::Plain(vectors[v.0].view()),
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
