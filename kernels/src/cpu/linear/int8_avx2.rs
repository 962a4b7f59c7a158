//! The AVX2 level of [`super::int8`]: eight rows of a group at a time, unpacked once per tile of x rows.
//!
//! `vpmaddubsw` multiplies unsigned quants with signed x; pair sums are added in 16 bits as far as they cannot
//! overflow (8, 4 and 2 of them for 4-, 5- and 6-bit quants) before `vpmaddwd` widens them.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_abs_epi8, _mm256_add_epi16, _mm256_add_epi32,
    _mm256_and_si256, _mm256_blend_epi16, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setr_epi32, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sign_epi8,
    _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_storeu_ps, _mm256_sub_epi32,
    _mm256_xor_ps,
};

use super::super::simd::Avx2;
use super::super::weight::BLOCK;
use super::super::weight::pack::{GROUP_ROWS, Layout, STEP, Scales};
use super::int8::{Int8Dot, Operands};

impl Int8Dot for Avx2 {
    #[inline(always)]
    unsafe fn dot<L: Layout, const TT: usize>(
        operands: Operands<'_>,
        rows: [usize; TT],
        out: &mut [[f32; GROUP_ROWS]; TT],
    ) {
        // SAFETY: the caller's promise.
        unsafe { dot::<L, TT>(operands, rows, out) }
    }
}

/// Eight steps of eight rows.
type Steps = [__m256i; 8];

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot<L: Layout, const TT: usize>(
    operands: Operands<'_>,
    rows: [usize; TT],
    out: &mut [[f32; GROUP_ROWS]; TT],
) {
    let n = operands.num_blocks;
    let x = operands.x;
    let mut acc = [[_mm256_setzero_ps(); 2]; TT];
    let mut at = operands.group.as_ptr();
    // SAFETY: the group has n blocks and x has the rows, each of n blocks, by the caller's promise.
    unsafe {
        for start in (0..n).step_by(L::BLOCKS) {
            let header = header_scales::<L>(at);
            at = at.add(L::HEADER);
            for b in start..start + L::BLOCKS {
                for half in 0..2 {
                    let w = unpack::<L>(at, half);
                    let scales = block_scales::<L>(header, at, half);
                    for t in 0..TT {
                        let block = rows[t] * n + b;
                        let quants = x.quants.as_ptr().add(block * BLOCK);
                        let pair = _mm256_set1_epi32(*x.pairs.as_ptr().add(block));
                        let dot = integer_dot::<L>(&w, quants, pair, &scales);
                        let by = _mm256_mul_ps(scales.d, _mm256_set1_ps(*x.scales.as_ptr().add(block)));
                        acc[t][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), by, acc[t][half]);
                        if matches!(L::SCALES, Scales::WithMin | Scales::Super) {
                            let sum = _mm256_set1_ps(*x.sums.as_ptr().add(block));
                            acc[t][half] = _mm256_fmadd_ps(scales.min, sum, acc[t][half]);
                        }
                    }
                }
                at = at.add(L::BODY);
            }
        }
        for (out, acc) in out.iter_mut().zip(acc) {
            _mm256_storeu_ps(out.as_mut_ptr(), acc[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), acc[1]);
        }
    }
}

/// Scales of a super-block: (d, dmin) of both halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn header_scales<L: Layout>(header: *const u8) -> [[__m256; 2]; 2] {
    let mut scales = [[_mm256_setzero_ps(); 2]; 2];
    // SAFETY: the header has 32 bytes of d and, for `Super`, 32 bytes of dmin.
    unsafe {
        for half in 0..2 {
            if matches!(L::SCALES, Scales::Super | Scales::Super16) {
                scales[0][half] = load_half(header.add(16 * half));
            }
            if L::SCALES == Scales::Super {
                scales[1][half] = load_half(header.add(32 + 16 * half));
            }
        }
    }
    scales
}

/// Eight f16 as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_half(p: *const u8) -> __m256 {
    // SAFETY: the caller promises 16 bytes.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

/// Scales of eight rows of a block.
struct BlockScales {
    d: __m256,
    /// Added times Σx; unused without mins.
    min: __m256,
    /// Integer scales of columns 0..16 and 16..32, twice per lane; `Super16` only.
    sub: [__m256i; 2],
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_scales<L: Layout>(header: [[__m256; 2]; 2], body: *const u8, half: usize) -> BlockScales {
    let zero = [_mm256_setzero_si256(); 2];
    // SAFETY: the scales of a block are at its start, 8 or 16 bytes per half and kind.
    unsafe {
        match L::SCALES {
            Scales::Plain => {
                BlockScales { d: load_half(body.add(16 * half)), min: _mm256_setzero_ps(), sub: zero }
            }
            Scales::WithMin => BlockScales {
                d: load_half(body.add(16 * half)),
                min: load_half(body.add(32 + 16 * half)),
                sub: zero,
            },
            Scales::Super => {
                let part = |at: usize| {
                    let bytes = _mm_loadl_epi64(body.add(at + 8 * half).cast());
                    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
                };
                let min = _mm256_mul_ps(header[1][half], part(16));
                BlockScales {
                    d: _mm256_mul_ps(header[0][half], part(0)),
                    min: _mm256_xor_ps(min, _mm256_set1_ps(-0.0)),
                    sub: zero,
                }
            }
            Scales::Super16 => {
                let twice = _mm256_set1_epi32(0x0100_0100);
                let twice = _mm256_add_epi32(
                    twice,
                    _mm256_setr_epi32(
                        0,
                        0x0404_0404,
                        0x0808_0808,
                        0x0c0c_0c0c,
                        0,
                        0x0404_0404,
                        0x0808_0808,
                        0x0c0c_0c0c,
                    ),
                );
                let part = |at: usize| {
                    let bytes = _mm_loadl_epi64(body.add(at + 8 * half).cast());
                    _mm256_shuffle_epi8(_mm256_cvtepi8_epi32(bytes), twice)
                };
                BlockScales { d: header[0][half], min: _mm256_setzero_ps(), sub: [part(0), part(16)] }
            }
        }
    }
}

/// Quants of rows 8 half..8 half + 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<L: Layout>(body: *const u8, half: usize) -> Steps {
    let mut w = [_mm256_setzero_si256(); 8];
    // SAFETY: scales, high bits and quants of a block follow each other as `Layout` says.
    unsafe {
        let high = body.add(L::SCALE_BYTES + 32 * half);
        let low = body.add(L::SCALE_BYTES + L::HIGH_BYTES + 32 * half);
        if L::BITS == 8 {
            for (s, w) in w.iter_mut().enumerate() {
                *w = _mm256_loadu_si256(low.add(STEP * s).cast());
            }
            return w;
        }
        let nibble = _mm256_set1_epi8(15);
        for i in 0..4 {
            let line = _mm256_loadu_si256(low.add(STEP * i).cast());
            w[i] = _mm256_and_si256(line, nibble);
            w[i + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(line), nibble);
        }
        if L::BITS == 5 {
            let bits = _mm256_loadu_si256(high.cast());
            let place = |v| _mm256_and_si256(v, _mm256_set1_epi8(0x10));
            let or = |w: &mut __m256i, v| *w = _mm256_or_si256(*w, place(v));
            or(&mut w[0], _mm256_slli_epi16::<4>(bits));
            or(&mut w[1], _mm256_slli_epi16::<3>(bits));
            or(&mut w[2], _mm256_slli_epi16::<2>(bits));
            or(&mut w[3], _mm256_slli_epi16::<1>(bits));
            or(&mut w[4], bits);
            or(&mut w[5], _mm256_srli_epi16::<1>(bits));
            or(&mut w[6], _mm256_srli_epi16::<2>(bits));
            or(&mut w[7], _mm256_srli_epi16::<3>(bits));
        }
        if L::BITS == 6 {
            for line in 0..2 {
                let bits = _mm256_loadu_si256(high.add(STEP * line).cast());
                let place = |v| _mm256_and_si256(v, _mm256_set1_epi8(0x30));
                let or = |w: &mut __m256i, v| *w = _mm256_or_si256(*w, place(v));
                or(&mut w[4 * line], _mm256_slli_epi16::<4>(bits));
                or(&mut w[4 * line + 1], _mm256_slli_epi16::<2>(bits));
                or(&mut w[4 * line + 2], bits);
                or(&mut w[4 * line + 3], _mm256_srli_epi16::<2>(bits));
            }
        }
    }
    w
}

/// Four columns of x in every lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn columns(x: *const i8, s: usize) -> __m256i {
    // SAFETY: the caller promises 32 columns.
    unsafe { _mm256_set1_epi32(x.add(4 * s).cast::<i32>().read_unaligned()) }
}

/// Σ (q - offset) x per row; with integer scales, their weighted sum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn integer_dot<L: Layout>(w: &Steps, x: *const i8, pair: __m256i, scales: &BlockScales) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    // SAFETY: x has 32 columns by the caller's promise.
    unsafe {
        let product = |s: usize| _mm256_maddubs_epi16(w[s], columns(x, s));
        let two = |s: usize| _mm256_add_epi16(product(s), product(s + 1));
        match L::BITS {
            4 | 5 => {
                let low = _mm256_add_epi16(two(0), two(2));
                let high = _mm256_add_epi16(two(4), two(6));
                let dot = if L::BITS == 4 {
                    _mm256_madd_epi16(_mm256_add_epi16(low, high), ones)
                } else {
                    _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones))
                };
                if L::OFFSET == 0 {
                    return dot;
                }
                let offset = _mm256_set1_epi16(L::OFFSET as i16);
                _mm256_sub_epi32(dot, _mm256_madd_epi16(pair, offset))
            }
            6 => {
                let [a, b] = scales.sub;
                let first = _mm256_add_epi32(_mm256_madd_epi16(two(0), a), _mm256_madd_epi16(two(2), a));
                let second = _mm256_add_epi32(_mm256_madd_epi16(two(4), b), _mm256_madd_epi16(two(6), b));
                let sums = _mm256_madd_epi16(_mm256_blend_epi16::<0b1010_1010>(a, b), pair);
                _mm256_sub_epi32(_mm256_add_epi32(first, second), _mm256_slli_epi32::<5>(sums))
            }
            _ => {
                let mut dot = _mm256_setzero_si256();
                for (s, &w) in w.iter().enumerate() {
                    let signed = _mm256_sign_epi8(columns(x, s), w);
                    let product = _mm256_maddubs_epi16(_mm256_abs_epi8(w), signed);
                    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(product, ones));
                }
                dot
            }
        }
    }
}
