//! The AVX-512 level of [`super::int8`]: all 16 rows of a group at a time, `vpdpbusd` for the products.

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512,
    _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32,
    _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mul_ps,
    _mm512_mullo_epi32, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi16, _mm512_srli_epi16, _mm512_storeu_ps, _mm512_ternarylogic_epi32,
    _mm512_xor_si512,
};

use super::super::simd::Avx512;
use super::super::weight::BLOCK;
use super::super::weight::pack::{GROUP_ROWS, Layout, STEP, Scales};
use super::int8::{Int8Dot, Operands};

impl Int8Dot for Avx512 {
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

/// Eight steps of 16 rows.
type Steps = [__m512i; 8];

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn dot<L: Layout, const TT: usize>(
    operands: Operands<'_>,
    rows: [usize; TT],
    out: &mut [[f32; GROUP_ROWS]; TT],
) {
    let n = operands.num_blocks;
    let x = operands.x;
    let mut acc = [_mm512_setzero_ps(); TT];
    let mut at = operands.group.as_ptr();
    // SAFETY: the group has n blocks and x has the rows, each of n blocks, by the caller's promise.
    unsafe {
        for start in (0..n).step_by(L::BLOCKS) {
            let header = header_scales::<L>(at);
            at = at.add(L::HEADER);
            for b in start..start + L::BLOCKS {
                let w = unpack::<L>(at);
                let scales = block_scales::<L>(header, at);
                for t in 0..TT {
                    let block = rows[t] * n + b;
                    let quants = x.quants.as_ptr().add(block * BLOCK);
                    let dot = integer_dot::<L>(&w, quants, *x.pairs.as_ptr().add(block), &scales);
                    let by = _mm512_mul_ps(scales.d, _mm512_set1_ps(*x.scales.as_ptr().add(block)));
                    acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), by, acc[t]);
                    if matches!(L::SCALES, Scales::WithMin | Scales::Super) {
                        let sum = _mm512_set1_ps(*x.sums.as_ptr().add(block));
                        acc[t] = _mm512_fmadd_ps(scales.min, sum, acc[t]);
                    }
                }
                at = at.add(L::BODY);
            }
        }
        for (out, acc) in out.iter_mut().zip(acc) {
            _mm512_storeu_ps(out.as_mut_ptr(), acc);
        }
    }
}

/// 16 f16 as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn load_half(p: *const u8) -> __m512 {
    // SAFETY: the caller promises 32 bytes.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
}

/// Scales of a super-block: d and dmin.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn header_scales<L: Layout>(header: *const u8) -> [__m512; 2] {
    // SAFETY: the header has 32 bytes of d and, for `Super`, 32 bytes of dmin.
    unsafe {
        match L::SCALES {
            Scales::Super => [load_half(header), load_half(header.add(32))],
            Scales::Super16 => [load_half(header), _mm512_setzero_ps()],
            Scales::Plain | Scales::WithMin => [_mm512_setzero_ps(); 2],
        }
    }
}

/// Scales of the rows of a block.
struct BlockScales {
    d: __m512,
    /// Added times Σx; unused without mins.
    min: __m512,
    /// Integer scales of columns 0..16 and 16..32; `Super16` only.
    sub: [__m512i; 2],
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn block_scales<L: Layout>(header: [__m512; 2], body: *const u8) -> BlockScales {
    let none = [_mm512_setzero_si512(); 2];
    // SAFETY: the scales of a block are at its start, 16 or 32 bytes per kind.
    unsafe {
        let line = |at: usize| _mm_loadu_si128(body.add(at).cast());
        match L::SCALES {
            Scales::Plain => BlockScales { d: load_half(body), min: _mm512_setzero_ps(), sub: none },
            Scales::WithMin => BlockScales { d: load_half(body), min: load_half(body.add(32)), sub: none },
            Scales::Super => {
                let part = |at: usize| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(line(at)));
                let min = _mm512_mul_ps(header[1], part(16));
                let sign = _mm512_set1_epi32(i32::MIN);
                BlockScales {
                    d: _mm512_mul_ps(header[0], part(0)),
                    min: _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(min), sign)),
                    sub: none,
                }
            }
            Scales::Super16 => {
                let part = |at: usize| _mm512_cvtepi8_epi32(line(at));
                BlockScales { d: header[0], min: _mm512_setzero_ps(), sub: [part(0), part(16)] }
            }
        }
    }
}

/// Quants of a block; signed ones are moved up by 128.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn unpack<L: Layout>(body: *const u8) -> Steps {
    let mut w = [_mm512_setzero_si512(); 8];
    // SAFETY: scales, high bits and quants of a block follow each other as `Layout` says.
    unsafe {
        let high = body.add(L::SCALE_BYTES);
        let low = body.add(L::SCALE_BYTES + L::HIGH_BYTES);
        let load = |p: *const u8| _mm512_loadu_si512(p.cast());
        if L::BITS == 8 {
            for (s, w) in w.iter_mut().enumerate() {
                *w = _mm512_xor_si512(load(low.add(STEP * s)), _mm512_set1_epi8(i8::MIN));
            }
            return w;
        }
        let nibble = _mm512_set1_epi8(15);
        for i in 0..4 {
            let line = load(low.add(STEP * i));
            w[i] = _mm512_and_si512(line, nibble);
            w[i + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(line), nibble);
        }
        // 0xf8 is a | (b & c).
        if L::BITS == 5 {
            let bits = load(high);
            let or =
                |w: &mut __m512i, v| *w = _mm512_ternarylogic_epi32::<0xf8>(*w, v, _mm512_set1_epi8(0x10));
            or(&mut w[0], _mm512_slli_epi16::<4>(bits));
            or(&mut w[1], _mm512_slli_epi16::<3>(bits));
            or(&mut w[2], _mm512_slli_epi16::<2>(bits));
            or(&mut w[3], _mm512_slli_epi16::<1>(bits));
            or(&mut w[4], bits);
            or(&mut w[5], _mm512_srli_epi16::<1>(bits));
            or(&mut w[6], _mm512_srli_epi16::<2>(bits));
            or(&mut w[7], _mm512_srli_epi16::<3>(bits));
        }
        if L::BITS == 6 {
            for line in 0..2 {
                let bits = load(high.add(STEP * line));
                let or = |w: &mut __m512i, v| {
                    *w = _mm512_ternarylogic_epi32::<0xf8>(*w, v, _mm512_set1_epi8(0x30));
                };
                or(&mut w[4 * line], _mm512_slli_epi16::<4>(bits));
                or(&mut w[4 * line + 1], _mm512_slli_epi16::<2>(bits));
                or(&mut w[4 * line + 2], bits);
                or(&mut w[4 * line + 3], _mm512_srli_epi16::<2>(bits));
            }
        }
    }
    w
}

/// Σ (q - offset) x per row; with integer scales, their weighted sum. `pair` holds Σx of columns 0..16 and 16..32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn integer_dot<L: Layout>(w: &Steps, x: *const i8, pair: i32, scales: &BlockScales) -> __m512i {
    let offset = if L::BITS == 8 { 128 } else { L::OFFSET };
    let (low, high) = (i32::from(pair as i16), pair >> 16);
    // SAFETY: x has 32 columns by the caller's promise.
    unsafe {
        let four = |start: usize, from: i32| {
            let mut dot = _mm512_set1_epi32(from);
            for s in start..start + 4 {
                let columns = _mm512_set1_epi32(x.add(4 * s).cast::<i32>().read_unaligned());
                dot = _mm512_dpbusd_epi32(dot, w[s], columns);
            }
            dot
        };
        if L::BITS == 6 {
            let first = _mm512_mullo_epi32(four(0, -offset * low), scales.sub[0]);
            let second = _mm512_mullo_epi32(four(4, -offset * high), scales.sub[1]);
            _mm512_add_epi32(first, second)
        } else {
            _mm512_add_epi32(four(0, -offset * (low + high)), four(4, 0))
        }
    }
}
