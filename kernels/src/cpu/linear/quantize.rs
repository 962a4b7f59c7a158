//! Activations in int8: blocks of 32 columns with one scale.

use super::super::Cpu;
use super::super::isa::Kernel;
use super::super::shared::SharedSlice;
use super::super::simd::Simd;
use super::super::weight::BLOCK;

/// Elements below which one thread quantises alone.
const PARALLEL_FROM: usize = 1 << 14;
/// A block whose largest magnitude is below this is zero: its scale would not be a normal number.
const SMALLEST: f32 = 1e-35;

/// `x` in int8: `x ≈ scale * q` per block, `|q| <= 127`. A block with a non-finite element has a NaN scale.
#[derive(Debug, Default)]
pub(crate) struct QuantizedRows {
    /// `[T, K]`.
    pub(super) quants: Vec<i8>,
    /// `[T, K / 32]`.
    pub(super) scales: Vec<f32>,
    /// scale * Σq, `[T, K / 32]`.
    pub(super) sums: Vec<f32>,
    /// Σq of columns 0..16 (low half) and 16..32 (high half) as i16, `[T, K / 32]`.
    pub(super) pairs: Vec<i32>,
}

impl QuantizedRows {
    /// Replaces the contents with the rows of `x`; `num_cols` is a multiple of 32.
    pub(super) fn fill(&mut self, cpu: &Cpu, x: &[f32], num_cols: usize) {
        let num_blocks = x.len() / BLOCK;
        self.quants.resize(x.len(), 0);
        self.scales.resize(num_blocks, 0.0);
        self.sums.resize(num_blocks, 0.0);
        self.pairs.resize(num_blocks, 0);
        let quants = SharedSlice::new(&mut self.quants);
        let scales = SharedSlice::new(&mut self.scales);
        let sums = SharedSlice::new(&mut self.sums);
        let pairs = SharedSlice::new(&mut self.pairs);
        let grain = if x.len() < PARALLEL_FROM { num_blocks } else { (num_cols / BLOCK).max(256) };
        cpu.pool().for_each(num_blocks, grain, |blocks| {
            let elements = blocks.start * BLOCK..blocks.end * BLOCK;
            // SAFETY: ranges of `for_each` do not overlap and lie within `num_blocks`.
            let kernel = unsafe {
                Quantize {
                    x: &x[elements.clone()],
                    quants: quants.part(elements),
                    scales: scales.part(blocks.clone()),
                    sums: sums.part(blocks.clone()),
                    pairs: pairs.part(blocks),
                }
            };
            cpu.launch(kernel);
        });
    }
}

struct Quantize<'a> {
    x: &'a [f32],
    quants: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    pairs: &'a mut [i32],
}

impl Kernel for Quantize<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let blocks = self.x.as_chunks::<BLOCK>().0.iter().zip(self.quants.as_chunks_mut::<BLOCK>().0);
        let metadata = self.scales.iter_mut().zip(self.sums.iter_mut().zip(self.pairs));
        for ((x, quants), (scale, (sum, pair))) in blocks.zip(metadata) {
            let (s, low, high) = quantize_block(x, quants);
            *scale = s;
            *sum = s * (low + high) as f32;
            *pair = (low & 0xffff) | high << 16;
        }
    }
}

/// Quantises a block; returns its scale and the sums of its two halves.
#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], quants: &mut [i8; BLOCK]) -> (f32, i32, i32) {
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let mut largest = [0.0f32; 8];
    // Stays 0 for finite elements and becomes NaN otherwise.
    let mut poison = [0.0f32; 8];
    for part in x.as_chunks::<8>().0 {
        for i in 0..8 {
            let magnitude = part[i].abs();
            largest[i] = if magnitude > largest[i] { magnitude } else { largest[i] };
            poison[i] += part[i] * 0.0;
        }
    }
    let largest = largest.iter().fold(0.0f32, |a, &b| if b > a { b } else { a });
    let poison: f32 = poison.iter().sum();
    let inverse = if largest < SMALLEST { 0.0 } else { 127.0 / largest };
    let scale = if largest < SMALLEST { 0.0 } else { largest / 127.0 };
    let mut rounded = [0i32; BLOCK];
    for i in 0..BLOCK {
        let bits = (x[i] * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
        rounded[i] = bits.clamp(-127, 127);
        quants[i] = rounded[i] as i8;
    }
    (scale + poison, rounded[..16].iter().sum(), rounded[16..].iter().sum())
}
