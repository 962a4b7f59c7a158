//! Element types of activations.

use super::memory::Stored;

/// An element type of activations.
pub trait Element: Stored {
    /// Bytes of an element.
    const BYTES: usize;
    /// Picks a kernel by element type: the names for f32 and bf16.
    #[doc(hidden)]
    fn pick<T>(for_f32: T, for_bf16: T) -> T;
    /// Nearest element.
    fn from_f32(value: f32) -> Self;
    /// Exact value.
    fn to_f32(self) -> f32;
}

impl Element for f32 {
    const BYTES: usize = 4;
    fn pick<T>(for_f32: T, _: T) -> T {
        for_f32
    }
    fn from_f32(value: f32) -> Self {
        value
    }
    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for half::bf16 {
    const BYTES: usize = 2;
    fn pick<T>(_: T, for_bf16: T) -> T {
        for_bf16
    }
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn to_f32(self) -> f32 {
        Self::to_f32(self)
    }
}

/// The name of a kernel for element type `$type`: `kernel!(T, "rms_norm")` is "`rms_norm_f32`" or "`rms_norm_bf16`".
macro_rules! kernel {
    ($type:ty, $name:literal) => {
        <$type as $crate::cuda::Element>::pick(concat!($name, "_f32"), concat!($name, "_bf16"))
    };
}
pub(super) use kernel;
