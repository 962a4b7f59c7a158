//! The driver: whether it is there, and its errors.

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::{DriverError, sys};

use crate::error::{KernelError, Result};

/// The oldest driver whose CUDA version loads the image: 13.0.
const MIN_DRIVER: i32 = 13_000;

impl From<DriverError> for KernelError {
    fn from(error: DriverError) -> Self {
        let text = |text: std::result::Result<&std::ffi::CStr, DriverError>| {
            text.map_or_else(|_| "unknown".to_owned(), |text| text.to_string_lossy().into_owned())
        };
        Self::Device { reason: format!("{} ({})", text(error.error_string()), text(error.error_name())) }
    }
}

impl From<CublasError> for KernelError {
    fn from(error: CublasError) -> Self {
        Self::Device { reason: format!("cuBLASLt: {:?}", error.0) }
    }
}

/// Whether the machine has an NVIDIA driver that is new enough.
///
/// # Errors
/// What is missing, and what to install.
pub(super) fn check() -> Result<()> {
    let fail = |reason: String| Err(KernelError::Device { reason });
    // SAFETY: loading the driver's library runs its initialisers only.
    if !unsafe { sys::is_culib_present() } {
        return fail("no NVIDIA driver on this machine (libcuda.so was not found)".to_owned());
    }
    let mut version = 0;
    // SAFETY: the library is there, and the function writes one integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    if version < MIN_DRIVER {
        let dotted = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
        return fail(format!(
            "the NVIDIA driver supports CUDA {}, the kernels need {}: update the driver to 580 or later",
            dotted(version),
            dotted(MIN_DRIVER),
        ));
    }
    Ok(cudarc::driver::result::init()?)
}
