//! Linear layers: y = x Wᵀ.
//!
//! Up to four rows of x (one if all is bf16) take a matrix-vector kernel, up to eight rows in bf16 a tensor-core kernel
//! unless the weight is wide, and more rows cuBLASLt. Where the library is missing or does not know a type, the first two run over the rows in
//! turns. Products of bf16 enter f32 sums, and F32 products are never rounded; with a bf16 result the library may round
//! the product before it adds a residual, and does before a bias.
//!
//! With quantised weights x is rounded to int8, one scale per 32 columns, for up to sixteen rows of x or an f32 x; for
//! more rows in bf16 the library takes the weight in bf16.

use super::cublas::{self, Operands, Product, Type};
use super::device::Cuda;
use super::element::Element;
use super::elementwise;
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
use super::quantized::{self, Activations};
use super::weight::{Format, Weight};
use crate::error::{KernelError, Result, ensure_len, rows_of};

const OP: &str = "linear";
/// Rows of x that the matrix-vector kernel takes.
const FEW: usize = 4;
/// Rows of x up to which products with quantised weights are int8.
const FEW_QUANTIZED: usize = 16;
/// Rows of x that the tensor-core kernel takes; it beats the matrix-vector kernel from two on.
const TENSOR_CORES: std::ops::RangeInclusive<usize> = 2..=8;
/// Rows of a weight from which the library beats the tensor-core kernel for any of these.
const WIDE: usize = 6144;

/// What is added to the product.
#[derive(Debug, Clone, Copy)]
pub enum Epilogue<'a, O> {
    /// out = y.
    Store,
    /// out += y.
    Accumulate,
    /// out = residual + y; `residual` is `[T, N]`.
    Residual(View<'a, O>),
}

/// out = epilogue(x Wᵀ + bias) for x `[T, K]`, W `[N, K]`, out `[T, N]`, bias `[N]`. T follows from the length of x.
///
/// # Errors
/// A length does not fit, or x is f32 and out bf16.
pub fn linear<X: Element, O: Element>(
    cuda: &Cuda,
    x: View<'_, X>,
    weight: &Weight,
    bias: Option<View<'_, f32>>,
    epilogue: Epilogue<'_, O>,
    out: &mut ViewMut<'_, O>,
) -> Result<()> {
    let num_tokens = rows_of(OP, "x", x.len(), weight.num_cols())?;
    ensure_len(OP, "out", out.len(), num_tokens * weight.num_rows())?;
    bias.map_or(Ok(()), |bias| ensure_len(OP, "bias", bias.len(), weight.num_rows()))?;
    if let Epilogue::Residual(residual) = epilogue {
        ensure_len(OP, "residual", residual.len(), out.len())?;
    }
    let call = Call { cuda, x, weight, bias, epilogue, num_tokens };
    match call.kernel(out)? {
        Kernel::Int8 => call.int8(out),
        Kernel::Dequantized => call.dequantized(out),
        Kernel::Vector => call.vector(out),
        Kernel::TensorCores => call.tensor_cores(out),
        Kernel::Library(input) => call.library(input, call.weight.bytes().pointer(), out),
    }
}

/// A checked call.
struct Call<'a, X, O> {
    cuda: &'a Cuda,
    x: View<'a, X>,
    weight: &'a Weight,
    bias: Option<View<'a, f32>>,
    epilogue: Epilogue<'a, O>,
    num_tokens: usize,
}

enum Kernel {
    Int8,
    Dequantized,
    Vector,
    TensorCores,
    Library(Type),
}

impl<X: Element, O: Element> Call<'_, X, O> {
    fn kernel(&self, out: &ViewMut<'_, O>) -> Result<Kernel> {
        if X::BYTES > O::BYTES {
            let reason = "f32 activations with a bf16 result; use an f32 result".to_owned();
            return Err(KernelError::Unsupported { op: OP, reason });
        }
        if self.weight.format().is_quantized() {
            let few = self.num_tokens <= FEW_QUANTIZED || X::BYTES == 4 || !cublas::is_present();
            return Ok(if few || !self.library_aligned(out) { Kernel::Int8 } else { Kernel::Dequantized });
        }
        let aligned = self.x.pointer().is_multiple_of(16) && self.num_cols().is_multiple_of(8);
        let bf16 = self.weight.format() == Format::BF16 && X::BYTES == 2;
        let f32 = self.weight.format() == Format::F32 && X::BYTES == 4;
        let tensor_cores = bf16 && aligned && self.num_cols().is_multiple_of(32);
        let library = self.library_aligned(out) && (bf16 || f32) && cublas::is_present();
        let wide = library && self.weight.num_rows() >= WIDE;
        Ok(match self.num_tokens {
            n if tensor_cores && TENSOR_CORES.contains(&n) && !wide => Kernel::TensorCores,
            2.. if tensor_cores && wide => Kernel::Library(Type::BF16),
            ..=FEW => Kernel::Vector,
            _ if library => Kernel::Library(if bf16 { Type::BF16 } else { Type::F32 }),
            _ if tensor_cores => Kernel::TensorCores,
            _ => Kernel::Vector,
        })
    }

    /// Whether the library may assume that matrices and their rows start at multiples of 16 bytes.
    fn library_aligned(&self, out: &ViewMut<'_, O>) -> bool {
        let residual = match self.epilogue {
            Epilogue::Residual(residual) => residual.pointer(),
            _ => 0,
        };
        let addresses = [self.x.pointer(), out.pointer(), residual];
        self.num_cols().is_multiple_of(8) && addresses.iter().all(|address| address.is_multiple_of(16))
    }

    fn num_cols(&self) -> usize {
        self.weight.num_cols()
    }

    /// The residual of rows `first..first + count`: a pointer argument.
    fn residual(
        &self,
        arguments: Arguments,
        part: std::ops::Range<usize>,
        out: &ViewMut<'_, O>,
    ) -> Result<Arguments> {
        Ok(match self.epilogue {
            Epilogue::Store => arguments.optional::<O>(None),
            Epilogue::Accumulate => arguments.view_mut(out),
            Epilogue::Residual(residual) => arguments.view(residual.range(part)?),
        })
    }

    /// Runs over the rows, up to four at a time.
    fn vector(&self, out: &mut ViewMut<'_, O>) -> Result<()> {
        const THREADS: usize = 256;
        let (n, k) = (self.weight.num_rows(), self.num_cols());
        let kernels = vector_kernels::<X, O>(self.weight.format());
        for first in (0..self.num_tokens).step_by(FEW) {
            let count = FEW.min(self.num_tokens - first);
            let part = first * n..(first + count) * n;
            let out = out.range(part.clone())?;
            let arguments = Arguments::new().view(self.weight.bytes());
            let arguments = arguments.view(self.x.range(first * k..(first + count) * k)?).optional(self.bias);
            let arguments = self.residual(arguments, part, &out)?.view_mut(&out).int(n).int(k);
            let grid = Grid::of(n, THREADS).overlapping();
            // SAFETY: x, out and the residual have `count` rows; a residual is read by the thread that overwrites it.
            unsafe { self.cuda.launch(OP, kernels[count - 1], grid, arguments)? };
        }
        Ok(())
    }

    fn tensor_cores(&self, out: &mut ViewMut<'_, O>) -> Result<()> {
        let (n, k) = (self.weight.num_rows(), self.num_cols());
        let (kernel, rows) = match self.num_tokens {
            ..=8 => (O::pick("mma_bf16_f32_1", "mma_bf16_bf16_1"), 8),
            9..=16 => (O::pick("mma_bf16_f32_2", "mma_bf16_bf16_2"), 16),
            _ => (O::pick("mma_bf16_f32_4", "mma_bf16_bf16_4"), 32),
        };
        let arguments = Arguments::new().view(self.weight.bytes()).view(self.x).optional(self.bias);
        let arguments = self.residual(arguments, 0..out.len(), out)?.view_mut(out);
        let arguments = arguments.int(n).int(k).int(self.num_tokens);
        let grid = Grid::new((n.div_ceil(16), self.num_tokens.div_ceil(rows), 1), (512, 1)).overlapping();
        // SAFETY: the lengths were checked; K is a multiple of 32 and x is aligned to 16 bytes.
        unsafe { self.cuda.launch(OP, kernel, grid, arguments) }
    }

    /// Runs over the rows, up to four at a time.
    fn int8(&self, out: &mut ViewMut<'_, O>) -> Result<()> {
        let n = self.weight.num_rows();
        self.cuda.with_workspace(quantized::workspace_len(self.x.len()), |workspace| {
            let mut workspace = workspace.view_mut();
            let x = Activations::round(self.cuda, OP, self.x, &mut workspace)?;
            let mut first = 0;
            while first < self.num_tokens {
                let count = match self.num_tokens - first {
                    1 => 1,
                    2 | 3 => 2,
                    _ => 4,
                };
                let part = first * n..(first + count) * n;
                let out = out.range(part.clone())?;
                x.product::<O>(self.cuda, OP, self.weight, (first, count), |arguments| {
                    Ok(self.residual(arguments.optional(self.bias), part, &out)?.view_mut(&out))
                })?;
                first += count;
            }
            Ok(())
        })
    }

    /// Expands the weight to bf16, for many rows of bf16.
    fn dequantized(&self, out: &mut ViewMut<'_, O>) -> Result<()> {
        let len = self.weight.num_rows() * self.num_cols();
        self.cuda.with_workspace(len / 2, |workspace| {
            let mut workspace = workspace.view_mut();
            let mut workspace = workspace.range(0..len / 2)?;
            let wide = workspace.as_bf16();
            quantized::dequantize(self.cuda, OP, self.weight, None, &wide)?;
            self.library(Type::BF16, wide.pointer(), out)
        })
    }

    fn library(&self, input: Type, weight: u64, out: &mut ViewMut<'_, O>) -> Result<()> {
        let c = match self.epilogue {
            Epilogue::Store => None,
            Epilogue::Accumulate => Some(out.pointer()),
            Epilogue::Residual(residual) => Some(residual.pointer()),
        };
        let owners = match self.epilogue {
            Epilogue::Residual(residual) => residual.owner(),
            _ => out.owner(),
        };
        for owner in [self.x.owner(), self.weight.bytes().owner(), out.owner(), owners] {
            self.cuda.ensure_owner(OP, owner)?;
        }
        let output = O::pick(Type::F32, Type::BF16);
        let (num_tokens, num_rows, num_cols) = (self.num_tokens, self.weight.num_rows(), self.num_cols());
        let product = Product { num_tokens, num_rows, num_cols, input, output };
        let operands = Operands { weight, x: self.x.pointer(), c, out: out.pointer() };
        // SAFETY: the lengths were checked, every address is a multiple of 16, and borrows keep out apart.
        unsafe { self.cuda.multiply(product, operands)? };
        self.bias.map_or(Ok(()), |bias| elementwise::add_bias(self.cuda, out, bias))
    }
}

/// The matrix-vector kernels for 1 to 4 rows of x.
fn vector_kernels<X: Element, O: Element>(weight: Format) -> [&'static str; FEW] {
    macro_rules! names {
        ($types:literal) => {
            [
                concat!("gemv_", $types, "_1"),
                concat!("gemv_", $types, "_2"),
                concat!("gemv_", $types, "_3"),
                concat!("gemv_", $types, "_4"),
            ]
        };
    }
    match weight {
        Format::F32 => {
            X::pick(names!("f32_f32_f32"), O::pick(names!("f32_bf16_f32"), names!("f32_bf16_bf16")))
        }
        Format::F16 => {
            X::pick(names!("f16_f32_f32"), O::pick(names!("f16_bf16_f32"), names!("f16_bf16_bf16")))
        }
        _ => X::pick(names!("bf16_f32_f32"), O::pick(names!("bf16_bf16_f32"), names!("bf16_bf16_bf16"))),
    }
}
