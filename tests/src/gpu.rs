//! Whether tests can run on a GPU.

use metrale_kernels::cuda;

/// Whether there is a GPU that this build has kernels for; says so loudly if not. `METRALE_REQUIRE_GPU` makes it an error.
///
/// # Panics
/// A GPU is required, and there is none.
#[must_use]
#[allow(clippy::print_stderr, clippy::panic)]
pub fn is_here() -> bool {
    match cuda::usable(0) {
        Ok(_) => true,
        Err(error) if std::env::var_os("METRALE_REQUIRE_GPU").is_some() => {
            panic!("a GPU is required: {error}")
        }
        Err(error) => {
            eprintln!("!!! SKIPPED: no model was run on CUDA: {error} !!!");
            false
        }
    }
}
