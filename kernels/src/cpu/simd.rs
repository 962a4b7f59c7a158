//! The f32 vector of each instruction-set level, as one small trait.
//!
//! Only what the kernels need. Every method is inlined into the `target_feature` function that [`super::Isa::run`]
//! picked; calling one outside of it is undefined behaviour, hence `unsafe`.

use half::{bf16, f16};

use super::linear::Int8Dot;

/// Vector operations of one level.
pub(crate) trait Simd: Int8Dot + Copy + 'static {
    /// f32 lanes in a vector: 8 or 16.
    const LANES: usize;
    /// A vector of [`Self::LANES`] f32.
    type V: Copy;

    /// # Safety
    /// The level's features must be present.
    unsafe fn splat(value: f32) -> Self::V;
    /// # Safety
    /// As `splat`; `p` must be readable for a whole vector.
    unsafe fn load(p: *const f32) -> Self::V;
    /// # Safety
    /// As `splat`; `p` must be readable for a whole vector. No alignment is needed.
    unsafe fn load_bf16(p: *const u8) -> Self::V;
    /// # Safety
    /// As `load_bf16`.
    unsafe fn load_f16(p: *const u8) -> Self::V;
    /// # Safety
    /// As `load_bf16`.
    unsafe fn load_bytes(p: *const u8) -> Self::V;
    /// Byte `j` of each of [`Self::LANES`] words as a number, with or without sign.
    /// # Safety
    /// As `splat`; `p` must be readable for a whole vector.
    unsafe fn load_byte<const SIGNED: bool>(p: *const u32, j: u32) -> Self::V;
    /// # Safety
    /// As `splat`; `p` must be writable for a whole vector.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// # Safety
    /// As `splat`.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// # Safety
    /// As `splat`.
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`; fused where the level has it.
    /// # Safety
    /// As `splat`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Sum of all lanes, in an order that depends on the level only.
    /// # Safety
    /// As `splat`.
    unsafe fn sum(a: Self::V) -> f32;
}

/// Plain Rust with eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Sum of eight lanes in the order that the AVX2 level uses.
fn sum8(a: [f32; 8]) -> f32 {
    let b = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
    (b[0] + b[2]) + (b[1] + b[3])
}

impl Simd for Portable {
    const LANES: usize = 8;
    type V = [f32; 8];

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        [value; 8]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller promises a readable vector.
        unsafe { p.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::V {
        // SAFETY: the caller promises a readable vector.
        let raw = unsafe { p.cast::<[[u8; 2]; 8]>().read_unaligned() };
        raw.map(|b| bf16::from_le_bytes(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::V {
        // SAFETY: the caller promises a readable vector.
        let raw = unsafe { p.cast::<[[u8; 2]; 8]>().read_unaligned() };
        raw.map(|b| f16::from_le_bytes(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::V {
        // SAFETY: the caller promises a readable vector.
        let raw = unsafe { p.cast::<[[u8; 4]; 8]>().read_unaligned() };
        raw.map(f32::from_le_bytes)
    }
    #[inline(always)]
    unsafe fn load_byte<const SIGNED: bool>(p: *const u32, j: u32) -> Self::V {
        // SAFETY: the caller promises a readable vector.
        let words = unsafe { p.cast::<[u32; 8]>().read_unaligned() };
        words.map(|w| if SIGNED { ((w >> (8 * j)) as i8) as f32 } else { ((w >> (8 * j)) as u8) as f32 })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller promises a writable vector.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn sum(a: Self::V) -> f32 {
        sum8(a)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::{
        __m256, __m512, _mm_add_ps, _mm_add_ss, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadu_si128,
        _mm_movehdup_ps, _mm_movehl_ps, _mm256_add_ps, _mm256_castps256_ps128, _mm256_castsi256_ps,
        _mm256_cvtepi32_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_fmadd_ps,
        _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps, _mm256_set1_ps, _mm256_sll_epi32,
        _mm256_slli_epi32, _mm256_srai_epi32, _mm256_srli_epi32, _mm256_storeu_ps, _mm512_add_ps,
        _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_fmadd_ps,
        _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_set1_ps,
        _mm512_sll_epi32, _mm512_slli_epi32, _mm512_srai_epi32, _mm512_srli_epi32, _mm512_storeu_ps,
    };

    /// AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2;

    // SAFETY (all methods): the caller promises the features and, for loads and stores, the memory.
    impl Simd for Avx2 {
        const LANES: usize = 8;
        type V = __m256;

        #[inline(always)]
        unsafe fn splat(value: f32) -> __m256 {
            // SAFETY: see the impl.
            unsafe { _mm256_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m256 {
            // SAFETY: see the impl.
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u8) -> __m256 {
            // SAFETY: see the impl.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u8) -> __m256 {
            // SAFETY: see the impl.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bytes(p: *const u8) -> __m256 {
            // SAFETY: see the impl.
            unsafe { _mm256_loadu_ps(p.cast()) }
        }
        #[inline(always)]
        unsafe fn load_byte<const SIGNED: bool>(p: *const u32, j: u32) -> __m256 {
            // SAFETY: see the impl.
            unsafe {
                let left = _mm_cvtsi32_si128(24 - 8 * j as i32);
                let top = _mm256_sll_epi32(_mm256_loadu_si256(p.cast()), left);
                let value = if SIGNED { _mm256_srai_epi32::<24>(top) } else { _mm256_srli_epi32::<24>(top) };
                _mm256_cvtepi32_ps(value)
            }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m256) {
            // SAFETY: see the impl.
            unsafe { _mm256_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            // SAFETY: see the impl.
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            // SAFETY: see the impl.
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: see the impl.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn sum(a: __m256) -> f32 {
            // SAFETY: see the impl.
            unsafe {
                let b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
                let c = _mm_add_ps(b, _mm_movehl_ps(b, b));
                _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)))
            }
        }
    }

    /// AVX-512 F, BW, VL, VNNI.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512;

    // SAFETY (all methods): as for `Avx2`.
    impl Simd for Avx512 {
        const LANES: usize = 16;
        type V = __m512;

        #[inline(always)]
        unsafe fn splat(value: f32) -> __m512 {
            // SAFETY: see the impl.
            unsafe { _mm512_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m512 {
            // SAFETY: see the impl.
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u8) -> __m512 {
            // SAFETY: see the impl.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u8) -> __m512 {
            // SAFETY: see the impl.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bytes(p: *const u8) -> __m512 {
            // SAFETY: see the impl.
            unsafe { _mm512_loadu_ps(p.cast()) }
        }
        #[inline(always)]
        unsafe fn load_byte<const SIGNED: bool>(p: *const u32, j: u32) -> __m512 {
            // SAFETY: see the impl.
            unsafe {
                let left = _mm_cvtsi32_si128(24 - 8 * j as i32);
                let top = _mm512_sll_epi32(_mm512_loadu_si512(p.cast()), left);
                let value = if SIGNED { _mm512_srai_epi32::<24>(top) } else { _mm512_srli_epi32::<24>(top) };
                _mm512_cvtepi32_ps(value)
            }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m512) {
            // SAFETY: see the impl.
            unsafe { _mm512_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see the impl.
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see the impl.
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: see the impl.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn sum(a: __m512) -> f32 {
            // SAFETY: see the impl.
            unsafe { _mm512_reduce_add_ps(a) }
        }
    }
}
