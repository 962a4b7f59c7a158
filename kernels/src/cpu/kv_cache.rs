//! Paged key and value storage.
//!
//! A page holds `block_size` tokens of one layer. Within a page the kv heads follow each other; a head's keys are
//! `[head_dim, block_size]` (so that a vector lane is a token), its values `[block_size, value_dim]`; values that are a
//! prefix of the keys are not stored again. Contents of slots that were never written are never read, so pages need no
//! clearing.

use half::bf16;
use half::vec::HalfBitsVecExt;

use crate::error::{KernelError, Result, ensure_len, ensure_value};

/// Element type of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// 4 bytes.
    F32,
    /// 2 bytes, rounded to nearest even on write.
    BF16,
}

impl KvDtype {
    /// Bytes of an element.
    #[must_use]
    pub fn num_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::BF16 => 2,
        }
    }
}

/// Geometry of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Pages.
    pub num_blocks: usize,
    /// Tokens of a page, a multiple of 16.
    pub block_size: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Width of a key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
}

/// Where the elements of a cache lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) shape: KvShape,
    /// Values are the first elements of the keys.
    pub(crate) values_in_keys: bool,
}

impl Layout {
    /// Width of the values that are stored.
    fn stored_value_dim(&self) -> usize {
        if self.values_in_keys { 0 } else { self.shape.value_dim }
    }

    /// Elements of one head of a page, keys and values.
    fn head_len(&self) -> usize {
        self.shape.block_size * (self.shape.head_dim + self.stored_value_dim())
    }

    /// Elements of a page.
    fn block_len(&self) -> usize {
        self.shape.num_kv_heads * self.head_len()
    }

    /// Where the keys of a head of a page start.
    pub(crate) fn keys_at(&self, block: usize, head: usize) -> usize {
        block * self.block_len() + head * self.head_len()
    }

    /// Where the values of a head of a page start, unless they are in the keys.
    pub(crate) fn values_at(&self, block: usize, head: usize) -> usize {
        self.keys_at(block, head) + self.shape.block_size * self.shape.head_dim
    }
}

/// The pages of one layer.
#[derive(Debug)]
pub struct KvCache {
    layout: Layout,
    pages: Pages,
}

#[derive(Debug)]
pub(crate) enum Pages {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
}

impl KvCache {
    /// Zeroed pages.
    ///
    /// # Errors
    /// The block size is not a positive multiple of 16, or a dimension is zero.
    pub fn new(shape: KvShape, dtype: KvDtype) -> Result<Self> {
        Self::with_layout(Layout { shape, values_in_keys: false }, dtype)
    }

    /// As [`KvCache::new`], for values that are the first elements of the keys and are not stored again.
    ///
    /// # Errors
    /// As [`KvCache::new`], or values are wider than keys.
    pub fn with_values_in_keys(shape: KvShape, dtype: KvDtype) -> Result<Self> {
        let fits = shape.value_dim <= shape.head_dim;
        let expected = format_args!("at most {}, the width of a key", shape.head_dim);
        ensure_value("kv_cache", "value_dim", shape.value_dim, fits, expected)?;
        Self::with_layout(Layout { shape, values_in_keys: true }, dtype)
    }

    fn with_layout(layout: Layout, dtype: KvDtype) -> Result<Self> {
        const OP: &str = "kv_cache";
        let shape = layout.shape;
        let size = shape.block_size;
        ensure_value(
            OP,
            "block_size",
            size,
            size > 0 && size.is_multiple_of(16),
            "a positive multiple of 16",
        )?;
        for (name, value) in [
            ("num_kv_heads", shape.num_kv_heads),
            ("head_dim", shape.head_dim),
            ("value_dim", shape.value_dim),
        ] {
            ensure_value(OP, name, value, value > 0, "at least 1")?;
        }
        let len = shape.num_blocks * layout.block_len();
        let pages = match dtype {
            KvDtype::F32 => Pages::F32(vec![0.0; len]),
            // Zero bits straight from the system: pages that are never used take no memory.
            KvDtype::BF16 => Pages::BF16(vec![0u16; len].reinterpret_into()),
        };
        Ok(Self { layout, pages })
    }

    /// Geometry.
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.layout.shape
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> KvDtype {
        match self.pages {
            Pages::F32(_) => KvDtype::F32,
            Pages::BF16(_) => KvDtype::BF16,
        }
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Copies page `from` to page `to`.
    ///
    /// # Errors
    /// A page does not exist.
    pub fn copy_block(&mut self, from: usize, to: usize) -> Result<()> {
        let limit = self.layout.shape.num_blocks;
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
        let len = self.layout.block_len();
        match &mut self.pages {
            Pages::F32(pages) => pages.copy_within(from * len..(from + 1) * len, to * len),
            Pages::BF16(pages) => pages.copy_within(from * len..(from + 1) * len, to * len),
        }
        Ok(())
    }
}

/// Writes k `[T, kv_heads, head_dim]` and v `[T, kv_heads, value_dim]`; row t goes to slot `slots[t]`
/// = block * `block_size` + position within the block. A cache with the values in the keys takes no v: it is empty.
///
/// # Errors
/// A length does not fit, or a slot lies outside of the cache.
pub fn write(cache: &mut KvCache, k: &[f32], v: &[f32], slots: &[u32]) -> Result<()> {
    const OP: &str = "kv_write";
    let (shape, value_dim) = (cache.layout.shape, cache.layout.stored_value_dim());
    ensure_len(OP, "k", k.len(), slots.len() * shape.num_kv_heads * shape.head_dim)?;
    ensure_len(OP, "v", v.len(), slots.len() * shape.num_kv_heads * value_dim)?;
    let limit = shape.num_blocks * shape.block_size;
    if let Some(position) = slots.iter().position(|&slot| slot as usize >= limit) {
        let found = slots[position] as usize;
        return Err(KernelError::Index { op: OP, argument: "slots", position, found, limit });
    }
    match &mut cache.pages {
        Pages::F32(pages) => write_rows(cache.layout, pages, k, v, slots, |x| x),
        Pages::BF16(pages) => write_rows(cache.layout, pages, k, v, slots, bf16::from_f32),
    }
    Ok(())
}

fn write_rows<E: Copy>(
    layout: Layout,
    pages: &mut [E],
    k: &[f32],
    v: &[f32],
    slots: &[u32],
    convert: impl Fn(f32) -> E,
) {
    let shape = layout.shape;
    let (hd, vd, heads) = (shape.head_dim, layout.stored_value_dim(), shape.num_kv_heads);
    for (t, &slot) in slots.iter().enumerate() {
        let (block, position) = (slot as usize / shape.block_size, slot as usize % shape.block_size);
        for head in 0..heads {
            let keys = &mut pages[layout.keys_at(block, head)..][..hd * shape.block_size];
            let k = &k[(t * heads + head) * hd..][..hd];
            for (&k, column) in k.iter().zip(keys.chunks_exact_mut(shape.block_size)) {
                column[position] = convert(k);
            }
            let values = &mut pages[layout.values_at(block, head) + position * vd..][..vd];
            let v = &v[(t * heads + head) * vd..][..vd];
            values.iter_mut().zip(v).for_each(|(to, &v)| *to = convert(v));
        }
    }
}
