//! The kernels of the build, loaded into a context.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use cudarc::driver::{CudaContext, result, sys};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::device::DeviceInfo;
use crate::error::{KernelError, Result};

/// The image that build.rs made, aligned for the driver. Empty if there was no nvcc.
static IMAGE: &Aligned<[u8]> =
    &Aligned { _align: [], bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin")) };

#[repr(C)]
struct Aligned<B: ?Sized> {
    _align: [u64; 0],
    bytes: B,
}

/// The targets of the build, such as "80,90a", or nothing if it was made without nvcc.
#[must_use]
pub fn image_archs() -> Option<&'static str> {
    (!IMAGE.bytes.is_empty()).then_some(env!("METRALE_CUDA_ARCHS"))
}

/// Bytes of the image.
#[must_use]
pub fn image_bytes() -> usize {
    IMAGE.bytes.len()
}

/// Whether the image has kernels for a device.
///
/// # Errors
/// What is missing, and what to do.
pub(super) fn check_image(info: &DeviceInfo) -> Result<()> {
    let Some(archs) = image_archs() else {
        let reason = "this build has no CUDA kernels: install nvcc (`make cuda-toolchain`) and build again";
        return Err(KernelError::Device { reason: reason.to_owned() });
    };
    // "90a" runs on 9.0 only, "80" on 8.0 and later minor versions of it.
    let (major, minor) = info.compute_capability;
    let runs = |arch: &str| {
        let exact = arch.ends_with(|c: char| c.is_ascii_alphabetic());
        let number: i32 = arch.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap_or(0);
        number / 10 == major && if exact { number % 10 == minor } else { number % 10 <= minor }
    };
    if archs.split(',').any(runs) {
        return Ok(());
    }
    let reason = format!(
        "the kernels are built for sm_{}, and the {} is sm_{major}{minor}: build with METRALE_CUDA_ARCHS",
        archs.replace(',', ", sm_"),
        info.name,
    );
    Err(KernelError::Device { reason })
}

/// A loaded image. It stays loaded for the life of the process.
#[derive(Debug)]
pub(super) struct Module {
    module: sys::CUmodule,
    /// Bytes of shared memory that a block may use.
    shared_bytes: usize,
    functions: Mutex<HashMap<&'static str, Function>>,
}

// SAFETY: the driver's handles may be used from any thread that has the context bound; `launch` binds it.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel and the sizes of its parameters in bytes.
#[derive(Debug, Clone)]
pub(super) struct Function {
    pub(super) handle: sys::CUfunction,
    pub(super) parameters: SmallVec<[u8; 24]>,
}

impl Module {
    pub(super) fn load(context: &Arc<CudaContext>, info: &DeviceInfo) -> Result<Self> {
        check_image(info)?;
        context.bind_to_thread()?;
        // SAFETY: the image is a complete fatbin, as nvcc wrote it.
        let module = unsafe { result::module::load_data(IMAGE.bytes.as_ptr().cast())? };
        Ok(Self { module, shared_bytes: info.shared_bytes, functions: Mutex::default() })
    }

    /// Calls `f` with a kernel, which is looked up once.
    pub(super) fn with<R>(&self, name: &'static str, f: impl FnOnce(&Function) -> Result<R>) -> Result<R> {
        let mut functions = self.functions.lock();
        if let Some(function) = functions.get(name) {
            return f(function);
        }
        f(functions.entry(name).or_insert(self.find(name)?))
    }

    fn find(&self, name: &'static str) -> Result<Function> {
        let missing = |_| KernelError::Device { reason: format!("the image has no kernel `{name}`") };
        let c_name = std::ffi::CString::new(name)
            .map_err(|_| KernelError::Device { reason: format!("`{name}` is not a kernel's name") })?;
        // SAFETY: the module is loaded.
        let handle = unsafe { result::module::get_function(self.module, c_name) }.map_err(missing)?;
        // SAFETY: the function exists.
        unsafe {
            let fixed = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
            let fixed = result::function::get_function_attribute(handle, fixed)?;
            let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(handle, dynamic, self.shared_bytes as i32 - fixed)?;
        }
        let mut parameters = SmallVec::new();
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function exists; the driver writes two integers, and fails after the last parameter.
        while unsafe { sys::cuFuncGetParamInfo(handle, parameters.len(), &raw mut offset, &raw mut size) }
            == sys::CUresult::CUDA_SUCCESS
        {
            parameters.push(size as u8);
        }
        Ok(Function { handle, parameters })
    }
}
