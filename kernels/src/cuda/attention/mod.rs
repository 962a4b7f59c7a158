//! Attention of queries over paged keys and values.
//!
//! Contexts of batches with few rows are cut into splits that run side by side; their results, (max, sum, weighted
//! values), are added in order. A row's result depends on the splits of its sequence, and on nothing else in the batch;
//! unless the caller fixes their length, there are as many as fill the device, of equal parts of each context.

mod rows;

use super::device::Cuda;
use super::element::{Element, kernel};
use super::kv_cache::{KvCache, KvDtype, KvShape, Pages};
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
pub use crate::cpu::attention::Sequence;
use crate::error::{KernelError, Result, ensure_len, ensure_value};
use rows::Views;
pub use rows::{Listed, Rows, Visible};

const OP: &str = "paged_attention";
/// Rows from which a batch fills the device without splits.
const MANY_ROWS: usize = 256;
/// Fewest keys of a split: of sequences with one row each, and of others.
const FEWEST_KEYS: [usize; 2] = [64, 256];
/// Most splits; as in `cuda/attention/combine.cu`.
const MAX_SPLITS: usize = 512;
/// Threads of a block.
const THREADS: usize = 128;
/// Queries of a tile: heads of a kv head, of one row or of a few rows.
const QUERIES: usize = 16;

/// What a layer does.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Query heads, a multiple of the cache's kv heads.
    pub num_heads: usize,
    /// Factor of q · k.
    pub scale: f32,
    /// Sliding window: of the keys that a row sees, the last this many.
    pub window: Option<usize>,
    /// Scores become cap * tanh(score / cap).
    pub softcap: Option<f32>,
    /// Fixes the length of splits, for results that do not depend on the batch.
    pub keys_per_split: Option<usize>,
}

/// out = softmax(scale * q kᵀ) v for q `[T, num_heads, head_dim]`, out `[T, num_heads, value_dim]`. A query that sees
/// no key gets zeros. q may be bf16 over a bf16 cache, or f32 over either.
///
/// # Errors
/// A length or count does not fit, the rows were checked against another geometry, or the types do not go together.
pub fn paged<T: Element>(
    cuda: &Cuda,
    attention: Attention,
    q: View<'_, T>,
    cache: &KvCache,
    rows: &Rows,
    out: &mut ViewMut<'_, T>,
) -> Result<()> {
    let shape = cache.shape();
    let (heads, kv_heads) = (attention.num_heads, shape.num_kv_heads);
    let grouped = heads > 0 && heads.is_multiple_of(kv_heads);
    ensure_value(OP, "num_heads", heads, grouped, format_args!("a multiple of {kv_heads} kv heads"))?;
    ensure_len(OP, "q", q.len(), rows.num_rows * heads * shape.head_dim)?;
    ensure_len(OP, "out", out.len(), rows.num_rows * heads * shape.value_dim)?;
    if rows.is_empty() {
        return Ok(());
    }
    let views = rows.views()?;
    let same = rows.block_size == shape.block_size && rows.num_blocks <= shape.num_blocks;
    ensure_value(
        OP,
        "block_size",
        rows.block_size,
        same,
        format_args!("rows set for this cache's geometry"),
    )?;
    if T::BYTES == 2 && cache.dtype() == KvDtype::F32 {
        let reason = "bf16 queries over an f32 cache; use a bf16 cache".to_owned();
        return Err(KernelError::Unsupported { op: OP, reason });
    }
    // The tensor-core kernel reads and writes 16 bytes at a time; a head is a multiple of that.
    for (name, address) in [("q", q.pointer()), ("out", out.pointer())] {
        let aligned = T::BYTES == 4 || address.is_multiple_of(16);
        ensure_value(OP, name, address as usize, aligned, "an address that is a multiple of 16 bytes")?;
    }
    let splits = Splits::of(cuda, attention, shape, rows);
    let num_splits = splits.count;
    let few = num_splits <= MAX_SPLITS;
    ensure_value(OP, "splits", num_splits, few, format_args!("at most {MAX_SPLITS}; raise keys_per_split"))?;
    let results = rows.num_rows * heads * num_splits * (shape.value_dim + 2);
    let workspace = if num_splits > 1 { results } else { 1 };
    cuda.with_workspace(workspace, |partial| {
        let call = Call { cuda, attention, q, cache, rows, views, splits };
        // bf16 over bf16 runs on the tensor cores.
        let on_tensor_cores = T::pick(false, true);
        if on_tensor_cores {
            call.tensor_cores(out, &mut partial.view_mut())?;
        } else {
            call.vectors(out, &mut partial.view_mut())?;
        }
        if num_splits == 1 {
            return Ok(());
        }
        let arguments = Arguments::new().view(partial.view()).view_mut(out);
        let arguments = arguments.int(num_splits).int(shape.value_dim);
        let grid = Grid::of(rows.num_rows * heads, shape.value_dim.next_multiple_of(32)).overlapping();
        // SAFETY: every split wrote its result for every row and head.
        unsafe { cuda.launch(OP, kernel!(T, "attention_combine"), grid, arguments) }
    })
}

/// How contexts are cut.
#[derive(Debug, Clone, Copy)]
struct Splits {
    /// Keys of a split; 0 if every sequence is cut into equal parts of its own.
    keys: usize,
    /// Fewest keys of such a part.
    fewest: usize,
    count: usize,
}

impl Splits {
    fn of(cuda: &Cuda, attention: Attention, shape: KvShape, rows: &Rows) -> Self {
        let longest = rows.longest.max(1);
        if let Some(keys) = attention.keys_per_split {
            let keys = keys.max(1).next_multiple_of(64);
            return Self { keys, fewest: keys, count: longest.div_ceil(keys) };
        }
        let group = attention.num_heads / shape.num_kv_heads;
        let units = rows.num_tiles((QUERIES / group).max(1)) * shape.num_kv_heads * group.div_ceil(QUERIES);
        let fewest = FEWEST_KEYS[usize::from(!rows.is_single())];
        let filling = Self::filling(cuda, units, resident_blocks(shape));
        Self { keys: 0, fewest, count: filling.min(longest.div_ceil(fewest)).min(MAX_SPLITS) }
    }

    /// The number of splits with which `units` blocks each fill the device in as few waves as possible.
    fn filling(cuda: &Cuda, units: usize, resident: usize) -> usize {
        /// Waves beyond which a partly filled last one does not matter.
        const MAX_WAVES: usize = 12;
        let slots = cuda.info().num_multiprocessors * resident;
        let full = |waves: usize| {
            let count = waves * slots / units.max(1);
            (count > 0 && 10 * count * units >= 9 * waves * slots).then_some(count)
        };
        (1..=MAX_WAVES).find_map(full).unwrap_or(1)
    }
}

/// Blocks of the tensor-core kernel that a multiprocessor holds at once.
fn resident_blocks(shape: KvShape) -> usize {
    match shape.head_dim.max(shape.value_dim) {
        ..=64 => 4,
        65..=128 => 3,
        _ => 1,
    }
}

/// A checked call.
struct Call<'a, T> {
    cuda: &'a Cuda,
    attention: Attention,
    q: View<'a, T>,
    cache: &'a KvCache,
    rows: &'a Rows,
    views: Views<'a>,
    splits: Splits,
}

impl<T: Element> Call<'_, T> {
    fn window(&self) -> usize {
        self.attention.window.unwrap_or(0).min(i32::MAX as usize)
    }

    /// Query heads of a kv head.
    fn group(&self) -> usize {
        self.attention.num_heads / self.cache.shape().num_kv_heads
    }

    fn begin(&self) -> Arguments {
        let arguments = Arguments::new().view(self.q);
        match &self.cache.pages {
            Pages::F32(pages) => arguments.view(pages.view()),
            Pages::BF16(pages) => arguments.view(pages.view()),
        }
    }

    /// One block per row, kv head and split.
    fn vectors(&self, out: &mut ViewMut<'_, T>, partial: &mut ViewMut<'_, f32>) -> Result<()> {
        let (rows, shape) = (self.rows, self.cache.shape());
        let variant = Variant::of(shape, self.group());
        let views = self.views;
        let arguments = self.begin().view(views.sequences).view(views.ends);
        let arguments = arguments.view(views.table_starts).view(views.tables).view_mut(out).view_mut(partial);
        let arguments = arguments.int(shape.block_size).int(shape.num_kv_heads);
        let arguments = arguments.int(shape.head_dim).int(shape.value_dim).int(self.attention.num_heads);
        let arguments = arguments.int(self.splits.keys).int(self.splits.fewest).int(self.window());
        let arguments = arguments.float(self.attention.scale).float(self.attention.softcap.unwrap_or(0.0));
        let per_row = shape.num_kv_heads * self.group().div_ceil(variant.heads);
        let grid = Grid::new((self.splits.count, per_row, rows.num_rows), (THREADS, 1));
        let kernel = variant.kernel(self.cache.dtype());
        // SAFETY: tables name existing pages for every key below a row's end; q, out and the partial results have
        // room for every row, head and split.
        unsafe { self.cuda.launch(OP, kernel, grid, arguments) }
    }

    /// One warp or one block per tile of up to 16 queries of a sequence and kv head, and split.
    fn tensor_cores(&self, out: &mut ViewMut<'_, T>, partial: &mut ViewMut<'_, f32>) -> Result<()> {
        const WARPS: usize = THREADS / 32;
        let (rows, shape) = (self.rows, self.cache.shape());
        let (kernel, width, stages) = match shape.head_dim.max(shape.value_dim) {
            ..=64 => ("attention_tensor_cores_64", 64, 2),
            65..=128 => ("attention_tensor_cores_128", 128, 2),
            _ => ("attention_tensor_cores_256", 256, 2),
        };
        // Keys and values of 16 positions per warp and stage.
        let shared_bytes = WARPS * stages * 2 * 16 * width * T::BYTES;
        let limit = self.cuda.info().shared_bytes;
        let fits = shared_bytes <= limit;
        ensure_value(
            OP,
            "head_dim",
            width,
            fits,
            format_args!("a head that fits {limit} bytes of shared memory"),
        )?;
        let tiles = rows.num_tiles((QUERIES / self.group()).max(1));
        // Single rows are cut into splits that fill the device.
        let many = rows.num_rows >= MANY_ROWS && !rows.is_single();
        let warps_per_tile = if many { 1 } else { WARPS };
        let views = self.views;
        let arguments = self.begin().view(views.starts).view(views.contexts);
        let arguments = arguments.view(views.table_starts).view(views.tables).view_mut(out).view_mut(partial);
        let arguments = arguments.int(shape.block_size).int(shape.num_kv_heads);
        let arguments = arguments.int(shape.head_dim).int(shape.value_dim).int(rows.num_tokens.len());
        let arguments = arguments.int(usize::from(rows.is_single())).int(self.attention.num_heads);
        let arguments = arguments.int(self.splits.keys).int(self.splits.fewest);
        let causal = usize::from(rows.visible == Visible::Causal);
        let arguments = arguments.int(self.window()).int(causal).int(warps_per_tile);
        let arguments = arguments.float(self.attention.scale).float(self.attention.softcap.unwrap_or(0.0));
        let per_tile = shape.num_kv_heads * self.group().div_ceil(QUERIES);
        let blocks = (self.splits.count, per_tile, (tiles * warps_per_tile).div_ceil(WARPS));
        // SAFETY: as in `vectors`; `kernel` is only called for bf16 over bf16, and the launcher aligned q and out.
        unsafe {
            self.cuda.launch(
                OP,
                kernel,
                Grid { shared_bytes, ..Grid::new(blocks, (THREADS, 1)).overlapping() },
                arguments,
            )
        }
    }
}

/// A compiled size of the kernel.
#[derive(Debug, Clone, Copy)]
struct Variant {
    /// 64-element chunks of a head.
    chunks: usize,
    /// Query heads of a block.
    heads: usize,
}

impl Variant {
    fn of(shape: KvShape, group: usize) -> Self {
        let width = shape.head_dim.max(shape.value_dim);
        let chunks = if width <= 64 {
            1
        } else if width <= 128 {
            2
        } else {
            4
        };
        Self { chunks, heads: if group == 1 { 1 } else { 4 } }
    }

    /// The kernel for f32 queries.
    fn kernel(self, cache: KvDtype) -> &'static str {
        macro_rules! names {
            ($types:literal) => {
                match (self.chunks, self.heads) {
                    (1, 1) => concat!("attention_", $types, "_1_1"),
                    (1, _) => concat!("attention_", $types, "_1_4"),
                    (2, 1) => concat!("attention_", $types, "_2_1"),
                    (2, _) => concat!("attention_", $types, "_2_4"),
                    (_, 1) => concat!("attention_", $types, "_4_1"),
                    _ => concat!("attention_", $types, "_4_4"),
                }
            };
        }
        match cache {
            KvDtype::F32 => names!("f32_f32"),
            KvDtype::BF16 => names!("f32_bf16"),
        }
    }
}
