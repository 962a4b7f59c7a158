//! Between merged projections and attention: norms and rotation of heads, and keys and values to their pages.

use super::device::Cuda;
use super::element::Element;
use super::indices::Indices;
use super::kv_cache::{KvCache, Pages};
use super::launch::{Arguments, Grid};
use super::memory::{View, ViewMut};
use super::norm::NormWeight;
use super::rope::{Pairing, Tables};
use crate::error::{KernelError, Result, ensure_len, ensure_value};

const OP: &str = "qkv_write";

/// Root-mean-square norm of every head.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm<'a> {
    /// Weight `[head_dim]`.
    pub weight: NormWeight<'a>,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// What happens to heads.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a> {
    /// Query heads.
    pub num_heads: usize,
    /// Of queries.
    pub q_norm: Option<HeadNorm<'a>>,
    /// Of keys.
    pub k_norm: Option<HeadNorm<'a>>,
    /// Rotation of queries and keys, `[T, R/2]` tables.
    pub rope: Option<(Tables<'a>, Pairing)>,
}

/// Takes x, `[T, (num_heads + kv_heads) * head_dim + kv_heads * value_dim]`: queries, keys and values of each row. Queries are
/// normed, rotated and written to `q` `[T, num_heads, head_dim]`; keys, as much, and values go to slot `slots[t]` of the
/// cache.
///
/// # Errors
/// A length does not fit, the slots were not checked against the cache, or x is bf16 and the cache f32.
pub fn write<T: Element>(
    cuda: &Cuda,
    x: View<'_, T>,
    heads: Heads<'_>,
    slots: &Indices,
    q: &mut ViewMut<'_, T>,
    cache: &mut KvCache,
) -> Result<()> {
    let (shape, rows, num_heads) = (cache.shape(), slots.len(), heads.num_heads);
    let (hd, kv_heads) = (shape.head_dim, shape.num_kv_heads);
    ensure_len(OP, "x", x.len(), rows * ((num_heads + kv_heads) * hd + kv_heads * shape.value_dim))?;
    ensure_len(OP, "q", q.len(), rows * num_heads * hd)?;
    let slots = slots.below(OP, "slots", shape.num_blocks * shape.block_size)?;
    let ((q_weight, q_mode, q_eps), (k_weight, k_mode, k_eps)) =
        (norm_parts(heads.q_norm, hd)?, norm_parts(heads.k_norm, hd)?);
    let (mut tables, mut half, mut interleaved) = (None, 0, 0);
    if let Some((Tables { cos, sin, rotary_dim }, pairing)) = heads.rope {
        let fits = rotary_dim.is_multiple_of(2) && rotary_dim <= hd;
        ensure_value(OP, "rotary_dim", rotary_dim, fits, format_args!("even, at most {hd}"))?;
        half = rotary_dim / 2;
        ensure_len(OP, "cos", cos.len(), rows * half)?;
        ensure_len(OP, "sin", sin.len(), rows * half)?;
        tables = Some((cos, sin));
        interleaved = usize::from(pairing == Pairing::Interleaved);
    }
    let arguments = Arguments::new().view(x).optional(q_weight).optional(k_weight);
    let arguments =
        arguments.optional(tables.map(|t| t.0)).optional(tables.map(|t| t.1)).view(slots).view_mut(q);
    let (kernel, arguments) = match &mut cache.pages {
        Pages::F32(pages) if T::BYTES == 4 => ("qkv_write_f32_f32", arguments.view_mut(&pages.view_mut())),
        Pages::BF16(pages) => {
            (T::pick("qkv_write_f32_bf16", "qkv_write_bf16_bf16"), arguments.view_mut(&pages.view_mut()))
        }
        Pages::F32(_) => {
            let reason = "bf16 heads over an f32 cache; use a bf16 cache".to_owned();
            return Err(KernelError::Unsupported { op: OP, reason });
        }
    };
    let arguments = arguments.int(q_mode).int(k_mode).float(q_eps).float(k_eps).int(half).int(interleaved);
    let arguments = arguments.int(shape.block_size).int(kv_heads).int(hd).int(shape.value_dim).int(num_heads);
    let grid = Grid::new((rows, (num_heads + 2 * kv_heads).div_ceil(4), 1), (128, 1)).overlapping();
    // SAFETY: x, q and the tables have `rows` rows, and slots are below the cache's.
    unsafe { cuda.launch(OP, kernel, grid, arguments) }
}

/// Checked: (weight, mode of the kernel, eps).
fn norm_parts(norm: Option<HeadNorm<'_>>, head_dim: usize) -> Result<(Option<View<'_, f32>>, usize, f32)> {
    let Some(HeadNorm { weight, eps }) = norm else { return Ok((None, 0, 0.0)) };
    let (weight, mode) = match weight {
        NormWeight::Plain(w) => (w, 1),
        NormWeight::ZeroCentered(w) => (w, 2),
        NormWeight::None => {
            let reason = "head norms without a weight".to_owned();
            return Err(KernelError::Unsupported { op: OP, reason });
        }
    };
    ensure_len(OP, "norm weight", weight.len(), head_dim)?;
    Ok((Some(weight), mode, eps))
}
