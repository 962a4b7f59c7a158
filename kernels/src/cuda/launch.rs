//! Launching a kernel: arguments, checked against the kernel's own parameter list.

use cudarc::driver::sys;
use smallvec::SmallVec;
use std::ffi::c_void;

use super::device::Cuda;
use super::memory::{View, ViewMut};
use crate::error::{KernelError, Result, ensure_value};

/// Blocks of a launch and threads of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) blocks: (usize, usize, usize),
    pub(super) threads: (usize, usize),
    /// Bytes of dynamic shared memory of a block.
    pub(super) shared_bytes: usize,
    /// Blocks may start before the kernels before are done: the kernel calls `wait_for_inputs()`.
    pub(super) overlapping: bool,
}

impl Grid {
    pub(super) fn new(blocks: (usize, usize, usize), threads: (usize, usize)) -> Self {
        Self { blocks, threads, shared_bytes: 0, overlapping: false }
    }

    /// For kernels that call `wait_for_inputs()` before they touch what other kernels do.
    pub(super) fn overlapping(self) -> Self {
        Self { overlapping: true, ..self }
    }

    /// One block per unit.
    pub(super) fn of(blocks: usize, threads: usize) -> Self {
        Self::new((blocks, 1, 1), (threads, 1))
    }

    /// About one thread per `per_thread` elements; kernels loop if that exceeds what the device can hold at once.
    pub(super) fn elements(cuda: &Cuda, len: usize, per_thread: usize) -> Self {
        const THREADS: usize = 256;
        let limit = cuda.info().num_multiprocessors * 32;
        Self::of(len.div_ceil(per_thread * THREADS).clamp(1, limit), THREADS)
    }
}

/// Arguments in the order of the kernel's parameters.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    values: SmallVec<[(u64, u8); 24]>,
    owners: SmallVec<[u32; 12]>,
    /// An integer that the kernel's type does not hold.
    too_large: Option<usize>,
}

impl Arguments {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn view<T>(self, view: View<'_, T>) -> Self {
        self.pointer(view.pointer(), Some(view.owner()))
    }

    /// A null pointer if there is no view.
    pub(super) fn optional<T>(self, view: Option<View<'_, T>>) -> Self {
        match view {
            Some(view) => self.view(view),
            None => self.pointer(0, None),
        }
    }

    pub(super) fn view_mut<T>(self, view: &ViewMut<'_, T>) -> Self {
        self.pointer(view.pointer(), Some(view.owner()))
    }

    pub(super) fn int(mut self, value: usize) -> Self {
        self.too_large = self.too_large.or((i32::try_from(value).is_err()).then_some(value));
        self.push(value as u64, 4)
    }

    pub(super) fn size(self, value: usize) -> Self {
        self.push(value as u64, 8)
    }

    pub(super) fn float(self, value: f32) -> Self {
        self.push(u64::from(value.to_bits()), 4)
    }

    pub(super) fn double(self, value: f64) -> Self {
        self.push(value.to_bits(), 8)
    }

    fn pointer(mut self, pointer: u64, owner: Option<u32>) -> Self {
        self.owners.extend(owner);
        self.push(pointer, 8)
    }

    fn push(mut self, value: u64, bytes: u8) -> Self {
        self.values.push((value, bytes));
        self
    }
}

impl Cuda {
    /// Puts a kernel on the stream.
    ///
    /// # Safety
    /// The kernel stays within the buffers and reads no element of an output that another thread writes, for these
    /// arguments and this grid.
    pub(super) unsafe fn launch(
        &self,
        op: &'static str,
        kernel: &'static str,
        grid: Grid,
        mut arguments: Arguments,
    ) -> Result<()> {
        let (x, y, z) = grid.blocks;
        if x == 0 || y == 0 || z == 0 {
            return Ok(());
        }
        for (argument, found, limit) in [
            ("blocks.x", x, i32::MAX as usize),
            ("blocks.y", y, usize::from(u16::MAX)),
            ("blocks.z", z, usize::from(u16::MAX)),
        ] {
            ensure_value(op, argument, found, found <= limit, format_args!("at most {limit}"))?;
        }
        if let Some(found) = arguments.too_large {
            ensure_value(op, "size", found, false, format_args!("at most {}", i32::MAX))?;
        }
        for &owner in &arguments.owners {
            self.ensure_owner(op, owner)?;
        }
        self.context.bind_to_thread()?;
        self.module.with(kernel, |function| {
            let given: SmallVec<[u8; 24]> = arguments.values.iter().map(|v| v.1).collect();
            if given != function.parameters {
                return Err(KernelError::Device {
                    reason: format!(
                        "kernel `{kernel}` takes parameters of {:?} bytes, the launcher gave {given:?}",
                        function.parameters
                    ),
                });
            }
            let mut pointers: SmallVec<[*mut c_void; 24]> =
                arguments.values.iter_mut().map(|v| (&raw mut v.0).cast()).collect();
            let mut attribute = sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            };
            // Devices before Hopper run one kernel after another.
            let overlapping = grid.overlapping && self.info().compute_capability.0 >= 9;
            let config = sys::CUlaunchConfig {
                gridDimX: x as u32,
                gridDimY: y as u32,
                gridDimZ: z as u32,
                blockDimX: grid.threads.0 as u32,
                blockDimY: grid.threads.1 as u32,
                blockDimZ: 1,
                sharedMemBytes: grid.shared_bytes as u32,
                hStream: self.stream.cu_stream(),
                attrs: &raw mut attribute,
                numAttrs: u32::from(overlapping),
            };
            let (handle, nothing) = (function.handle, std::ptr::null_mut());
            // SAFETY: pointers, in number and size, match the parameters; little-endian words hold shorter values
            // first. The rest is the caller's promise.
            unsafe { sys::cuLaunchKernelEx(&raw const config, handle, pointers.as_mut_ptr(), nothing) }
                .result()?;
            Ok(())
        })
    }
}
