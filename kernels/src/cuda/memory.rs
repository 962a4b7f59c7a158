//! Device memory: owned buffers, borrowed views.

use std::marker::PhantomData;
use std::ops::Range;

use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, ValidAsZeroBits, result};

use super::device::Cuda;
use super::element::Element;
use crate::error::{Result, ensure_len, ensure_value};

/// An element that device memory holds.
pub trait Stored: DeviceRepr + ValidAsZeroBits + Copy + Send + Sync + 'static {}

impl Stored for f32 {}
impl Stored for half::bf16 {}
impl Stored for half::f16 {}
impl Stored for u8 {}
impl Stored for u32 {}

/// Elements on a device. Freed in the order of the device's stream.
#[derive(Debug)]
pub struct Buffer<T> {
    slice: CudaSlice<T>,
    owner: u32,
}

impl<T: Stored> Buffer<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// The device has no memory left.
    pub fn zeroed(cuda: &Cuda, len: usize) -> Result<Self> {
        cuda.ensure_not_recording()?;
        // The driver refuses empty allocations.
        let slice = cuda.stream.alloc_zeros(len.max(1))?;
        Ok(Self { slice, owner: cuda.id() })
    }

    /// A copy of host memory.
    ///
    /// # Errors
    /// The device has no memory left.
    pub fn from_slice(cuda: &Cuda, values: &[T]) -> Result<Self> {
        let mut buffer = Self::zeroed(cuda, values.len())?;
        buffer.view_mut().range(0..values.len())?.upload(cuda, values)?;
        Ok(buffer)
    }

    /// Elements, at least 1.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Whether there are no elements; never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }

    /// All elements.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        let pointer = self.pointer();
        View { pointer, len: self.len(), owner: self.owner, lifetime: PhantomData }
    }

    /// All elements, to write.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        let pointer = self.pointer();
        ViewMut { pointer, len: self.len(), owner: self.owner, lifetime: PhantomData }
    }

    fn pointer(&self) -> u64 {
        // Tracking is off, so the guard has nothing to record.
        self.slice.device_ptr(self.slice.stream()).0
    }
}

/// Bytes that hold elements of changing types: any bytes are valid numbers.
impl Buffer<u8> {
    /// The first `len` elements.
    ///
    /// # Errors
    /// There are fewer.
    pub fn elements<T: Element>(&self, len: usize) -> Result<View<'_, T>> {
        let bytes = self.view().range(0..len * size_of::<T>())?;
        Ok(View { pointer: bytes.pointer, len, owner: bytes.owner, lifetime: PhantomData })
    }

    /// The first `len` elements, to write.
    ///
    /// # Errors
    /// There are fewer.
    pub fn elements_mut<T: Element>(&mut self, len: usize) -> Result<ViewMut<'_, T>> {
        let (pointer, owner) = (self.pointer(), self.owner);
        check_range(&(0..len * size_of::<T>()), self.len())?;
        Ok(ViewMut { pointer, len, owner, lifetime: PhantomData })
    }
}

/// Borrowed elements on a device.
#[derive(Debug)]
pub struct View<'a, T> {
    pointer: u64,
    len: usize,
    owner: u32,
    lifetime: PhantomData<&'a [T]>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

/// Borrowed elements on a device, to write.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    pointer: u64,
    len: usize,
    owner: u32,
    lifetime: PhantomData<&'a mut [T]>,
}

fn check_range(range: &Range<usize>, len: usize) -> Result<()> {
    let valid = range.start <= range.end && range.end <= len;
    ensure_value("view", "range", range.end, valid, format_args!("a range within 0..{len}"))
}

impl<'a, T> View<'a, T> {
    /// Number of elements.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Part of the elements.
    ///
    /// # Errors
    /// The range is reversed or ends after the last element.
    pub fn range(self, range: Range<usize>) -> Result<View<'a, T>> {
        check_range(&range, self.len)?;
        let pointer = self.pointer + (range.start * size_of::<T>()) as u64;
        Ok(View { pointer, len: range.len(), ..self })
    }

    pub(super) fn pointer(self) -> u64 {
        self.pointer
    }

    pub(super) fn owner(self) -> u32 {
        self.owner
    }
}

impl<T: Stored> View<'_, T> {
    /// Waits for everything before and copies to the host.
    ///
    /// # Errors
    /// `out` has another length, or earlier work failed.
    pub fn download(self, cuda: &Cuda, out: &mut [T]) -> Result<()> {
        const OP: &str = "download";
        ensure_len(OP, "out", out.len(), self.len)?;
        cuda.ensure_owner(OP, self.owner)?;
        cuda.context.bind_to_thread()?;
        // SAFETY: both sides have `len` elements, and the host's side outlives the copy, which is waited for.
        unsafe { result::memcpy_dtoh_async(out, self.pointer, cuda.stream.cu_stream())? };
        cuda.synchronize()
    }

    /// As [`download`](Self::download), to a new vector.
    ///
    /// # Errors
    /// Earlier work failed.
    pub fn to_vec(self, cuda: &Cuda) -> Result<Vec<T>>
    where
        T: Default,
    {
        let mut out = vec![T::default(); self.len];
        self.download(cuda, &mut out)?;
        Ok(out)
    }
}

impl<T> ViewMut<'_, T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, to read.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        View { pointer: self.pointer, len: self.len, owner: self.owner, lifetime: PhantomData }
    }

    /// A shorter borrow.
    #[must_use]
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut { lifetime: PhantomData, ..*self }
    }

    /// Part of the elements.
    ///
    /// # Errors
    /// The range is reversed or ends after the last element.
    pub fn range(&mut self, range: Range<usize>) -> Result<ViewMut<'_, T>> {
        check_range(&range, self.len)?;
        let pointer = self.pointer + (range.start * size_of::<T>()) as u64;
        Ok(ViewMut { pointer, len: range.len(), lifetime: PhantomData, ..*self })
    }

    /// The elements before and from `at` on.
    ///
    /// # Errors
    /// `at` lies after the last element.
    pub fn split(&mut self, at: usize) -> Result<(ViewMut<'_, T>, ViewMut<'_, T>)> {
        check_range(&(0..at), self.len)?;
        let pointer = self.pointer + (at * size_of::<T>()) as u64;
        let rest = ViewMut { pointer, len: self.len - at, owner: self.owner, lifetime: PhantomData };
        Ok((ViewMut { len: at, lifetime: PhantomData, ..*self }, rest))
    }

    pub(super) fn pointer(&self) -> u64 {
        self.pointer
    }

    pub(super) fn owner(&self) -> u32 {
        self.owner
    }
}

impl ViewMut<'_, f32> {
    /// The same memory as twice as many bf16 elements, of arbitrary values.
    pub(super) fn as_bf16(&mut self) -> ViewMut<'_, half::bf16> {
        ViewMut { pointer: self.pointer, len: 2 * self.len, owner: self.owner, lifetime: PhantomData }
    }
}

impl<T: Stored> ViewMut<'_, T> {
    /// Copies from the host; `values` may be reused at once.
    ///
    /// # Errors
    /// `values` has another length.
    pub fn upload(&mut self, cuda: &Cuda, values: &[T]) -> Result<()> {
        const OP: &str = "upload";
        ensure_len(OP, "values", values.len(), self.len)?;
        cuda.ensure_owner(OP, self.owner)?;
        cuda.context.bind_to_thread()?;
        // SAFETY: both sides have `len` elements; the driver copies pageable memory before it returns.
        unsafe { result::memcpy_htod_async(self.pointer, values, cuda.stream.cu_stream())? };
        Ok(())
    }

    /// Copies from the same device.
    ///
    /// # Errors
    /// `from` has another length.
    pub fn copy_from(&mut self, cuda: &Cuda, from: View<'_, T>) -> Result<()> {
        const OP: &str = "copy";
        ensure_len(OP, "from", from.len, self.len)?;
        cuda.ensure_owner(OP, self.owner)?;
        cuda.ensure_owner(OP, from.owner)?;
        cuda.context.bind_to_thread()?;
        let bytes = self.len * size_of::<T>();
        // SAFETY: both sides have as many bytes, and the borrows keep them apart.
        unsafe { result::memcpy_dtod_async(self.pointer, from.pointer, bytes, cuda.stream.cu_stream())? };
        Ok(())
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// The driver fails.
    pub fn fill_bytes(&mut self, cuda: &Cuda, byte: u8) -> Result<()> {
        cuda.ensure_owner("fill", self.owner)?;
        cuda.context.bind_to_thread()?;
        let bytes = self.len * size_of::<T>();
        // SAFETY: the elements have as many bytes, and any bytes are valid numbers.
        unsafe { result::memset_d8_async(self.pointer, byte, bytes, cuda.stream.cu_stream())? };
        Ok(())
    }
}
