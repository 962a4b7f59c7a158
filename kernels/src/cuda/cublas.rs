//! Matrix products by cuBLASLt, for many rows.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t as Preference;
use cudarc::cublaslt::{result, sys};

use super::device::Cuda;
use super::memory::Buffer;
use crate::error::{KernelError, Result};

/// Workspace that the library recommends for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Alignment that algorithms may assume of every matrix.
const ALIGNMENT: u32 = 16;

/// `CUBLAS_OP_T`, whose type the bindings of this library lack.
const OP_TRANSPOSE: i32 = 1;

/// out = x Wᵀ (+ c), row-major: x `[T, K]`, W `[N, K]`, out `[T, N]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    /// T.
    pub(super) num_tokens: usize,
    /// N.
    pub(super) num_rows: usize,
    /// K.
    pub(super) num_cols: usize,
    /// Type of x and W.
    pub(super) input: Type,
    /// Type of out and c.
    pub(super) output: Type,
}

/// Element type of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Type {
    F32,
    BF16,
}

impl Type {
    fn code(self) -> sys::cudaDataType {
        match self {
            Self::F32 => sys::cudaDataType::CUDA_R_32F,
            Self::BF16 => sys::cudaDataType::CUDA_R_16BF,
        }
    }
}

/// Addresses of the matrices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands {
    pub(super) weight: u64,
    pub(super) x: u64,
    /// Added to the product.
    pub(super) c: Option<u64>,
    pub(super) out: u64,
}

/// The library with the algorithms that it chose so far.
#[derive(Debug)]
pub(super) struct MatrixMultiply {
    handle: sys::cublasLtHandle_t,
    workspace: Buffer<u8>,
    plans: HashMap<Product, Plan>,
}

// SAFETY: handles and descriptors are plain memory of the library, used by one thread at a time.
unsafe impl Send for MatrixMultiply {}

/// Descriptors of a product. They live as long as the process: there are as many as shapes.
#[derive(Debug)]
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// Whether the library is installed.
pub(super) fn is_present() -> bool {
    static PRESENT: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    // SAFETY: loading the library runs its initialisers only.
    *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() })
}

impl MatrixMultiply {
    fn new(cuda: &Cuda) -> Result<Self> {
        if !is_present() {
            let reason = "cuBLASLt (libcublasLt.so) was not found; install the CUDA libraries".to_owned();
            return Err(KernelError::Device { reason });
        }
        cuda.context.bind_to_thread()?;
        let handle = result::create_handle()?;
        Ok(Self { handle, workspace: Buffer::zeroed(cuda, WORKSPACE_BYTES)?, plans: HashMap::new() })
    }

    fn plan(&mut self, product: Product) -> Result<&Plan> {
        if !self.plans.contains_key(&product) {
            self.plans.insert(product, Plan::new(self.handle, product)?);
        }
        self.plans.get(&product).ok_or_else(|| KernelError::Device { reason: "cuBLASLt: no plan".to_owned() })
    }
}

impl Plan {
    /// The library's matrices are column-major, so that it computes outᵀ `[N, T]` = W `[K, N]`ᵀ xᵀ `[K, T]`.
    fn new(handle: sys::cublasLtHandle_t, product: Product) -> Result<Self> {
        let Product { num_tokens, num_rows, num_cols, input, output } = product;
        let layout = |t: Type, rows: usize, cols: usize| {
            result::create_matrix_layout(t.code(), rows as u64, cols as u64, rows as i64)
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let operation = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?;
        let (transpose, workspace_bytes, alignment) = (OP_TRANSPOSE, WORKSPACE_BYTES, ALIGNMENT);
        let preference = result::create_matmul_pref()?;
        let weight = layout(input, num_cols, num_rows)?;
        let x = layout(input, num_cols, num_tokens)?;
        let out = layout(output, num_rows, num_tokens)?;
        let alignments = [
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        // SAFETY: the descriptors were just made, and each attribute is given with its type.
        let heuristic = unsafe {
            result::set_matmul_desc_attribute(
                operation,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transpose).cast(),
                size_of_val(&transpose),
            )?;
            result::set_matmul_pref_attribute(
                preference,
                Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace_bytes).cast(),
                size_of::<usize>(),
            )?;
            for attribute in alignments {
                let bytes = (&raw const alignment).cast();
                result::set_matmul_pref_attribute(preference, attribute, bytes, size_of::<u32>())?;
            }
            result::get_matmul_algo_heuristic(handle, operation, weight, x, out, out, preference)
        };
        // SAFETY: made above, and not used afterwards.
        unsafe { result::destroy_matmul_pref(preference)? };
        Ok(Self { operation, weight, x, out, algorithm: heuristic?.algo })
    }
}

impl Cuda {
    /// Puts a product on the stream.
    ///
    /// # Safety
    /// The addresses, multiples of 16, hold the matrices; out does not overlap the inputs, except that it may be c.
    pub(super) unsafe fn multiply(&self, product: Product, operands: Operands) -> Result<()> {
        let mut multiply = self.multiply.lock();
        let library = match &mut *multiply {
            Some(library) => library,
            slot => slot.insert(MatrixMultiply::new(self)?),
        };
        self.context.bind_to_thread()?;
        let (handle, workspace) = (library.handle, library.workspace.view().pointer());
        let plan = library.plan(product)?;
        let (alpha, beta) = (1.0f32, if operands.c.is_some() { 1.0f32 } else { 0.0 });
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: descriptors match the matrices; the rest is the caller's promise.
        unsafe {
            result::matmul(
                handle,
                plan.operation,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                pointer(operands.weight),
                plan.weight,
                pointer(operands.x),
                plan.x,
                pointer(operands.c.unwrap_or(operands.out)),
                plan.out,
                pointer(operands.out).cast_mut(),
                plan.out,
                &raw const plan.algorithm,
                pointer(workspace).cast_mut(),
                WORKSPACE_BYTES,
                self.stream.cu_stream().cast(),
            )?;
        }
        Ok(())
    }
}
