//! Instruction-set levels and run-time dispatch.
//!
//! A kernel is a value that implements [`Kernel`]; [`Isa::run`] compiles its body once per level and picks one at
//! run time. An [`Isa`] other than `Portable` is only handed to kernels after [`Isa::is_supported`] said yes, which
//! is what makes the calls into `target_feature` functions sound.

#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Portable, Simd};

/// An instruction-set level, ordered from the most general one to the most demanding one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, every target.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and VNNI on top of AVX2.
    Avx512,
}

impl Isa {
    /// All levels, most general first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The best level that this processor supports.
    #[must_use]
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_supported()).unwrap_or(Self::Portable)
    }

    /// Whether this processor can run the level.
    #[must_use]
    pub fn is_supported(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => has_avx2(),
            Self::Avx512 => has_avx2() && has_avx512(),
        }
    }

    /// Name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
        }
    }

    /// Runs a kernel body compiled for this level.
    ///
    /// # Safety
    /// The level must be supported by this processor.
    #[inline]
    pub(crate) unsafe fn run<K: Kernel>(self, kernel: K) {
        match self {
            Self::Portable => kernel.run::<Portable>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises that the processor has these features.
            Self::Avx2 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx512 => unsafe { run_avx512(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => kernel.run::<Portable>(),
        }
    }
}

/// A kernel body that is generic over the vector type. `run` must be `#[inline(always)]`, so that it is compiled with
/// the features of the level.
pub(crate) trait Kernel {
    /// Computes.
    fn run<S: Simd>(self);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) {
    kernel.run::<Avx2>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn run_avx512<K: Kernel>(kernel: K) {
    kernel.run::<Avx512>();
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}
