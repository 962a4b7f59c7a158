//! Paged key and value storage.
//!
//! A page holds `block_size` tokens of one layer. Within a page the kv heads follow each other; a head's keys are
//! `[block_size, head_dim]`, its values `[block_size, value_dim]`. Contents of slots that were never written are never
//! read.

use half::bf16;

use super::device::Cuda;
use super::element::Element;
use super::indices::Indices;
use super::launch::{Arguments, Grid};
use super::memory::{Buffer, View};
pub use crate::cpu::kv_cache::{KvDtype, KvShape};
use crate::error::{KernelError, Result, ensure_len, ensure_value};

/// Widest head.
const MAX_HEAD: usize = 256;

/// The pages of one layer.
#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    pub(super) pages: Pages,
}

#[derive(Debug)]
pub(super) enum Pages {
    F32(Buffer<f32>),
    BF16(Buffer<bf16>),
}

impl KvCache {
    /// Zeroed pages.
    ///
    /// # Errors
    /// A dimension is zero, a head's width is not a multiple of 8 up to 256, or no memory is left.
    pub fn new(cuda: &Cuda, shape: KvShape, dtype: KvDtype) -> Result<Self> {
        const OP: &str = "kv_cache";
        for (name, value) in [("block_size", shape.block_size), ("num_kv_heads", shape.num_kv_heads)] {
            ensure_value(OP, name, value, value > 0, "at least 1")?;
        }
        for (name, value) in [("head_dim", shape.head_dim), ("value_dim", shape.value_dim)] {
            let supported = value > 0 && value.is_multiple_of(8) && value <= MAX_HEAD;
            ensure_value(OP, name, value, supported, format_args!("a multiple of 8, at most {MAX_HEAD}"))?;
        }
        let len = shape.num_blocks * page_len(&shape);
        // Kernels count eight elements at a time in 32 bits.
        ensure_value(
            OP,
            "num_blocks",
            shape.num_blocks,
            len / 8 < 1 << 32,
            "a cache of at most 2^35 elements",
        )?;
        let pages = match dtype {
            KvDtype::F32 => Pages::F32(Buffer::zeroed(cuda, len)?),
            KvDtype::BF16 => Pages::BF16(Buffer::zeroed(cuda, len)?),
        };
        Ok(Self { shape, pages })
    }

    /// Fills a bf16 cache with numbers between -1 and 1, for runs without a checkpoint.
    ///
    /// # Errors
    /// The driver fails.
    pub fn fill_dummy(&mut self, cuda: &Cuda) -> Result<()> {
        let Pages::BF16(pages) = &mut self.pages else { return Ok(()) };
        let arguments = Arguments::new().view_mut(&pages.view_mut()).size(pages.len()).float(1.0).int(1);
        // SAFETY: the pages have so many elements.
        unsafe { cuda.launch("kv_cache", "fill_dummy", Grid::elements(cuda, pages.len(), 1), arguments) }
    }

    /// Geometry.
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> KvDtype {
        match self.pages {
            Pages::F32(_) => KvDtype::F32,
            Pages::BF16(_) => KvDtype::BF16,
        }
    }

    /// Copies page `from` to page `to`.
    ///
    /// # Errors
    /// A page does not exist.
    pub fn copy_block(&mut self, cuda: &Cuda, from: usize, to: usize) -> Result<()> {
        let limit = self.shape.num_blocks;
        for (position, found) in [from, to].into_iter().enumerate() {
            if found >= limit {
                return Err(KernelError::Index {
                    op: "copy_block",
                    argument: "block",
                    position,
                    found,
                    limit,
                });
            }
        }
        let len = page_len(&self.shape);
        match &mut self.pages {
            Pages::F32(pages) => copy_page(cuda, pages, len, from, to),
            Pages::BF16(pages) => copy_page(cuda, pages, len, from, to),
        }
    }
}

/// Elements of a page.
fn page_len(shape: &KvShape) -> usize {
    shape.num_kv_heads * shape.block_size * (shape.head_dim + shape.value_dim)
}

fn copy_page<T: Element>(
    cuda: &Cuda,
    pages: &mut Buffer<T>,
    len: usize,
    from: usize,
    to: usize,
) -> Result<()> {
    let (low, high) = (from.min(to), from.max(to));
    if low == high {
        return Ok(());
    }
    let mut pages = pages.view_mut();
    let (mut first, mut second) = pages.split(high * len)?;
    let (mut low, mut high) = (first.range(low * len..(low + 1) * len)?, second.range(0..len)?);
    if from < to { high.copy_from(cuda, low.view()) } else { low.copy_from(cuda, high.view()) }
}

/// Writes k `[T, kv_heads, head_dim]` and v `[T, kv_heads, value_dim]`; row t goes to slot `slots[t]`
/// = block * `block_size` + position within the block. No slot occurs twice.
///
/// # Errors
/// A length does not fit, or the slots were not checked against the cache.
pub fn write<T: Element>(
    cuda: &Cuda,
    cache: &mut KvCache,
    k: View<'_, T>,
    v: View<'_, T>,
    slots: &Indices,
) -> Result<()> {
    const OP: &str = "kv_write";
    let shape = cache.shape;
    ensure_len(OP, "k", k.len(), slots.len() * shape.num_kv_heads * shape.head_dim)?;
    ensure_len(OP, "v", v.len(), slots.len() * shape.num_kv_heads * shape.value_dim)?;
    let slots = slots.below(OP, "slots", shape.num_blocks * shape.block_size)?;
    let arguments = Arguments::new().view(k).view(v).view(slots);
    let (kernel, arguments) = match &mut cache.pages {
        Pages::F32(pages) => {
            (T::pick("kv_write_f32_f32", "kv_write_bf16_f32"), arguments.view_mut(&pages.view_mut()))
        }
        Pages::BF16(pages) => {
            (T::pick("kv_write_f32_bf16", "kv_write_bf16_bf16"), arguments.view_mut(&pages.view_mut()))
        }
    };
    let arguments = arguments.int(shape.block_size).int(shape.num_kv_heads);
    let arguments = arguments.int(shape.head_dim).int(shape.value_dim);
    let threads = (shape.num_kv_heads * shape.head_dim).next_multiple_of(32).min(256);
    // SAFETY: slots are below the cache's, and k and v have a row for each.
    unsafe { cuda.launch(OP, kernel, Grid::of(slots.len(), threads), arguments) }
}
