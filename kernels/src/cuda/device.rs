//! A CUDA device: context, stream, kernels.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaStream};
use parking_lot::Mutex;

use super::cublas::MatrixMultiply;
use super::driver;
use super::memory::Buffer;
use super::module::Module;
use crate::error::{KernelError, Result, ensure_value};

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number of the device, from 0.
    pub ordinal: usize,
    /// Name as the driver gives it.
    pub name: String,
    /// (major, minor), (9, 0) for Hopper.
    pub compute_capability: (i32, i32),
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// Streaming multiprocessors.
    pub num_multiprocessors: usize,
    /// Bytes of second-level cache.
    pub l2_bytes: usize,
    /// Bytes of shared memory that a block may use.
    pub shared_bytes: usize,
}

/// A device with one stream: copies and kernels run in the order of the calls, and memory is freed in that order too.
/// Calls return before the device is done, unless they say otherwise.
#[derive(Debug)]
pub struct Cuda {
    id: u32,
    info: DeviceInfo,
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    pub(super) module: Module,
    workspaces: Mutex<Vec<Buffer<f32>>>,
    pub(super) recording: AtomicBool,
    pub(super) multiply: Mutex<Option<MatrixMultiply>>,
}

/// The devices of this machine.
///
/// # Errors
/// There is no driver, or it is too old.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    driver::check()?;
    let count = CudaContext::device_count()?;
    (0..count.max(0) as usize).map(|ordinal| info(&*CudaContext::new(ordinal)?)).collect()
}

/// Device `ordinal`, if this build has kernels for it.
///
/// # Errors
/// There is no driver or no such device, or the build has no kernels for it.
pub fn usable(ordinal: usize) -> Result<DeviceInfo> {
    let devices = devices()?;
    let count = devices.len();
    let Some(info) = devices.into_iter().nth(ordinal) else {
        let reason = format!("no device {ordinal}; this machine has {count}");
        return Err(KernelError::Device { reason });
    };
    super::module::check_image(&info)?;
    Ok(info)
}

fn info(context: &CudaContext) -> Result<DeviceInfo> {
    let attribute = |a| context.attribute(a).map(|value| value.max(0) as usize);
    Ok(DeviceInfo {
        ordinal: context.ordinal(),
        name: context.name()?,
        compute_capability: context.compute_capability()?,
        memory_bytes: context.total_mem()?,
        num_multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    })
}

impl Cuda {
    /// Opens device `ordinal` and loads the kernels.
    ///
    /// # Errors
    /// There is no driver, no such device, or the build has no kernels for it.
    pub fn new(ordinal: usize) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        driver::check()?;
        let count = CudaContext::device_count()?.max(0) as usize;
        ensure_value("cuda", "ordinal", ordinal, ordinal < count, format_args!("below {count} devices"))?;
        let context = CudaContext::new(ordinal)?;
        // SAFETY: every buffer is used on one stream only, so there is nothing to order by events.
        unsafe { context.disable_event_tracking() };
        let info = info(&context)?;
        let module = Module::load(&context, &info)?;
        let stream = context.new_stream()?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            id,
            info,
            context,
            stream,
            module,
            workspaces: Mutex::default(),
            recording: AtomicBool::new(false),
            multiply: Mutex::default(),
        })
    }

    /// What the device is.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Distinguishes the devices of this process; buffers carry it.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// (free, total) bytes of device memory.
    ///
    /// # Errors
    /// The driver fails.
    pub fn memory(&self) -> Result<(usize, usize)> {
        Ok(self.context.mem_get_info()?)
    }

    /// Waits until everything so far is done.
    ///
    /// # Errors
    /// A kernel or copy failed.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }

    /// Checks that a buffer belongs to this device.
    pub(super) fn ensure_owner(&self, op: &'static str, owner: u32) -> Result<()> {
        if owner == self.id {
            return Ok(());
        }
        let reason = "a buffer belongs to another device; copy it over the host first".to_owned();
        Err(KernelError::Unsupported { op, reason })
    }

    /// Calls `f` with a scratch buffer of at least `len` elements whose contents are arbitrary. It grows as needed and is
    /// kept, so that steady work allocates nothing.
    pub(super) fn with_workspace<R>(
        &self,
        len: usize,
        f: impl FnOnce(&mut Buffer<f32>) -> Result<R>,
    ) -> Result<R> {
        let mut workspaces = self.workspaces.lock();
        let largest = workspaces.last().map_or(0, Buffer::len);
        if largest < len {
            // Graphs may hold the addresses of smaller ones, so these stay; doubling bounds their sum.
            workspaces.push(Buffer::zeroed(self, len.max(2 * largest))?);
        }
        match workspaces.last_mut() {
            Some(workspace) => f(workspace),
            None => f(&mut Buffer::zeroed(self, len)?),
        }
    }
}
