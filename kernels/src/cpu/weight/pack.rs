//! The packed layout of quantised weights: groups of 16 rows, interleaved so that a vector lane is a row.
//!
//! A group holds, for each 32-column block in order, the scales of its 16 rows, the high bits and the low nibbles:
//! step s (0..8) covers columns 4s..4s+4, and a step is 16 rows x 4 bytes. Nibble line i (64 bytes) carries step i
//! in its low nibbles and step i + 4 in its high ones. The fifth bit of step s is bit s of a byte per (row, column
//! within the step); the two upper bits of a 6-bit quant are bits 2(s mod 4) of line s / 4. Super-block formats
//! put the f16 scales of the rows once before their eight blocks, and the integer scales before each block.
//! Rows beyond the matrix are zero.

use super::aligned::AlignedBytes;
use super::block::{self, BLOCK, NIBBLES};
use super::format::Format;
use crate::cpu::pool::ThreadPool;
use crate::cpu::shared::SharedSlice;

/// Rows in a group.
pub(crate) const GROUP_ROWS: usize = 16;
/// Bytes that a worker packs at a time.
const GRAIN_BYTES: usize = 256 * 1024;
/// Bytes of a step: 16 rows x 4 columns.
pub(crate) const STEP: usize = 64;

/// How the scales of a block are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scales {
    /// f16 d per row and block.
    Plain,
    /// f16 d and m per row and block.
    WithMin,
    /// f16 d and dmin per row and super-block, u8 sc and m per block.
    Super,
    /// f16 d per row and super-block, two i8 scales of 16 columns per block.
    Super16,
}

/// Compile-time description of a packed format.
pub(crate) trait Layout: 'static {
    /// Bits of a quant: 4, 5, 6 or 8 (signed).
    const BITS: u32;
    /// What to subtract from a quant.
    const OFFSET: i32;
    /// Scales.
    const SCALES: Scales;
    /// 32-column blocks that share a header.
    const BLOCKS: usize = if matches!(Self::SCALES, Scales::Super | Scales::Super16) { 8 } else { 1 };
    /// Bytes before the blocks of a super-block.
    const HEADER: usize = match Self::SCALES {
        Scales::Super => 64,
        Scales::Super16 => 32,
        _ => 0,
    };
    /// Bytes of scales in a block.
    const SCALE_BYTES: usize = match Self::SCALES {
        Scales::WithMin => 64,
        _ => 32,
    };
    /// Bytes of high bits in a block.
    const HIGH_BYTES: usize = match Self::BITS {
        5 => STEP,
        6 => 2 * STEP,
        _ => 0,
    };
    /// Bytes of a block of 16 rows x 32 columns.
    const BODY: usize =
        Self::SCALE_BYTES + Self::HIGH_BYTES + if Self::BITS == 8 { 8 * STEP } else { 4 * STEP };
    /// Bytes of a super-block (or block) of 16 rows.
    const SUPER: usize = Self::HEADER + Self::BLOCKS * Self::BODY;
}

macro_rules! layouts {
    ($($name:ident: $bits:literal, $offset:literal, $scales:ident;)*) => {
        $(#[allow(non_camel_case_types)] pub(crate) struct $name;
        impl Layout for $name {
            const BITS: u32 = $bits;
            const OFFSET: i32 = $offset;
            const SCALES: Scales = Scales::$scales;
        })*
        /// Calls a function that is generic over the layout with the layout of a quantised format; float formats
        /// take the second expression.
        macro_rules! with_layout {
            ($format:expr, $layout:ident => $call:expr, $otherwise:expr) => {
                match $format {
                    $($crate::cpu::weight::Format::$name => {
                        type $layout = $crate::cpu::weight::pack::$name;
                        $call
                    })*
                    $crate::cpu::weight::Format::F32
                    | $crate::cpu::weight::Format::BF16
                    | $crate::cpu::weight::Format::F16 => $otherwise,
                }
            };
        }
        pub(crate) use with_layout;
    };
}

layouts! {
    Q4_0: 4, 8, Plain;
    Q4_1: 4, 0, WithMin;
    Q5_0: 5, 16, Plain;
    Q5_1: 5, 0, WithMin;
    Q8_0: 8, 0, Plain;
    Q4_K: 4, 0, Super;
    Q5_K: 5, 0, Super;
    Q6_K: 6, 32, Super16;
}

/// Bytes of a group of 16 rows.
pub(crate) fn group_bytes(format: Format, num_cols: usize) -> usize {
    with_layout!(format, L => num_cols / BLOCK / L::BLOCKS * L::SUPER, 0)
}

/// Packs the rows of a checkpoint matrix; the groups are shared between the workers.
pub(super) fn pack(
    pool: &ThreadPool,
    format: Format,
    num_rows: usize,
    num_cols: usize,
    bytes: &[u8],
) -> AlignedBytes {
    let num_groups = num_rows.div_ceil(GROUP_ROWS);
    let group_len = group_bytes(format, num_cols);
    let mut packed = AlignedBytes::zeroed(num_groups * group_len);
    let row_bytes = format.row_bytes(num_cols);
    let groups = SharedSlice::new(packed.as_mut_slice());
    let grain = (GRAIN_BYTES / group_len.max(1)).max(1);
    pool.for_each(num_groups, grain, |range| {
        for group in range {
            let first = group * GROUP_ROWS * row_bytes;
            let source = &bytes[first..bytes.len().min(first + GROUP_ROWS * row_bytes)];
            // SAFETY: every group has its own part, within the buffer.
            let to = unsafe { groups.part(group * group_len..(group + 1) * group_len) };
            with_layout!(format, L => pack_group::<L>(format, source, row_bytes, to), ());
        }
    });
    packed
}

#[inline(never)]
fn pack_group<L: Layout>(format: Format, source: &[u8], row_bytes: usize, group: &mut [u8]) {
    for (row, bytes) in source.chunks_exact(row_bytes).enumerate() {
        for index in 0..group.len() / L::SUPER * L::BLOCKS {
            let raw = block::read(format, bytes, index);
            let span = &mut group[index / L::BLOCKS * L::SUPER..][..L::SUPER];
            let (header, bodies) = span.split_at_mut(L::HEADER);
            let body = &mut bodies[index % L::BLOCKS * L::BODY..][..L::BODY];
            let (scales, quants) = body.split_at_mut(L::SCALE_BYTES);
            put_scales::<L>(&raw, row, header, scales);
            put_quants::<L>(&raw.quants, row, quants);
        }
    }
}

fn put_scales<L: Layout>(raw: &block::RawBlock, row: usize, header: &mut [u8], scales: &mut [u8]) {
    let put =
        |to: &mut [u8], half: usize, value: [u8; 2]| to[32 * half + 2 * row..][..2].copy_from_slice(&value);
    match L::SCALES {
        Scales::Plain => put(scales, 0, raw.d),
        Scales::WithMin => {
            put(scales, 0, raw.d);
            put(scales, 1, raw.m);
        }
        Scales::Super | Scales::Super16 => {
            put(header, 0, raw.d);
            if L::SCALES == Scales::Super {
                put(header, 1, raw.m);
            }
            scales[row] = raw.sub[0];
            scales[16 + row] = raw.sub[1];
        }
    }
}

#[inline(always)]
fn put_quants<L: Layout>(quants: &[u32; 8], row: usize, to: &mut [u8]) {
    let (high, low) = to.split_at_mut(L::HIGH_BYTES);
    let put = |to: &mut [u8], line: usize, word: u32| {
        to[STEP * line + 4 * row..][..4].copy_from_slice(&word.to_le_bytes());
    };
    if L::BITS == 8 {
        for (step, &word) in quants.iter().enumerate() {
            put(low, step, word);
        }
        return;
    }
    for line in 0..4 {
        put(low, line, (quants[line] & NIBBLES) | (quants[line + 4] & NIBBLES) << 4);
    }
    let upper = |step: usize| (quants[step] >> 4) & NIBBLES;
    if L::BITS == 5 {
        put(high, 0, (0..8).fold(0, |bits, step| bits | upper(step) << step));
    }
    if L::BITS == 6 {
        for line in 0..2 {
            put(high, line, (0..4).fold(0, |bits, s| bits | upper(4 * line + s) << (2 * s)));
        }
    }
}
