//! Prints the speed of the CUDA kernels: `cargo run --release -p metrale-kernels --example cuda_bench`.
//!
//! GB/s count every byte that the kernel must move once, and are compared with the rate of a device-to-device copy,
//! measured first. Weights rotate over more memory than the second-level cache holds; KV caches, states and logits of small
//! cases fit it. Times are medians of the device's clock over launches that follow each other, so they include what a
//! launch costs.
#![allow(clippy::print_stdout)]

use half::bf16;
use metrale_kernels::Result;
use metrale_kernels::cuda::attention::{Attention, Sequence, Visible, paged};
use metrale_kernels::cuda::conv::{Conv1d, SlotSequence, causal_conv1d};
use metrale_kernels::cuda::delta_rule::{DeltaInputs, DeltaShape, HeadMap, gated_delta_rule};
use metrale_kernels::cuda::elementwise::{Unary, gated};
use metrale_kernels::cuda::embedding::gather;
use metrale_kernels::cuda::kv_cache::{KvCache, KvDtype, KvShape, write};
use metrale_kernels::cuda::linear::{Epilogue, linear};
use metrale_kernels::cuda::logits::{argmax, top_k};
use metrale_kernels::cuda::norm::{NormWeight, RowsMut, add_rms_norm, rms_norm};
use metrale_kernels::cuda::{Buffer, Cuda, Indices, Rows, Slots, Timer, Weight};

/// Memory that buffers rotate over.
const WORKING_SET: usize = 1 << 30;
/// Measurements of which the median counts.
const REPEATS: usize = 7;

fn main() -> Result<()> {
    let cuda = Cuda::new(0)?;
    println!("{:?}", cuda.info());
    let bench = Bench { copy_rate: copy_rate(&cuda)?, cuda: &cuda };
    println!("device-to-device copy {:.0} GB/s, read and written\n", bench.copy_rate / 1e9);
    bench.linear()?;
    bench.quantized()?;
    bench.attention()?;
    bench.rows()?;
    bench.recurrent()?;
    bench.vocabulary()
}

/// Bytes per second, read and written.
fn copy_rate(cuda: &Cuda) -> Result<f64> {
    let from = random(cuda, 1 << 31)?;
    let mut to = Buffer::<bf16>::zeroed(cuda, from.len())?;
    let seconds = median(cuda, 4, |_| to.view_mut().copy_from(cuda, from.view()))?;
    Ok(2.0 * 2.0 * from.len() as f64 / seconds)
}

/// Median seconds of a call; `f` gets the number of the call.
fn median(cuda: &Cuda, calls: usize, mut f: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let mut all = Vec::new();
    for _ in 0..=REPEATS {
        let timer = Timer::start(cuda)?;
        (0..calls).try_for_each(&mut f)?;
        all.push(f64::from(timer.stop(cuda)?) / 1e3 / calls as f64);
    }
    // The first one loads kernels.
    let all = &mut all[1..];
    all.sort_by(f64::total_cmp);
    Ok(all[REPEATS / 2])
}

/// Random bf16 values in -1..1; a block of them, repeated.
fn random(cuda: &Cuda, len: usize) -> Result<Buffer<bf16>> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    let block: Vec<bf16> = (0..len.min(1 << 24)).map(|_| next()).collect();
    let mut buffer = Buffer::zeroed(cuda, len)?;
    for start in (0..len).step_by(block.len().max(1)) {
        let end = len.min(start + block.len());
        buffer.view_mut().range(start..end)?.upload(cuda, &block[..end - start])?;
    }
    Ok(buffer)
}

fn ones(cuda: &Cuda, len: usize) -> Result<Buffer<f32>> {
    Buffer::from_slice(cuda, &vec![0.01f32; len])
}

struct Bench<'a> {
    cuda: &'a Cuda,
    copy_rate: f64,
}

impl Bench<'_> {
    fn print(&self, name: &str, seconds: f64, bytes: usize, operations: f64) {
        let rate = bytes as f64 / seconds;
        println!(
            "{name:58} {:9.2} us {:6.0} GB/s {:4.0} % of copy {:7.1} TFLOP/s",
            seconds * 1e6,
            rate / 1e9,
            100.0 * rate / self.copy_rate,
            operations / seconds / 1e12
        );
    }

    fn linear(&self) -> Result<()> {
        let cuda = self.cuda;
        for (n, k) in
            [(28_672, 8192), (4096, 4096), (6144, 4096), (4096, 12_288), (1024, 2048), (151_936, 4096)]
        {
            let bytes = 2 * n * k;
            let copies = (WORKING_SET / bytes).clamp(1, 64);
            let source = random(cuda, n * k)?;
            let raw: Vec<u8> = source.view().to_vec(cuda)?.iter().flat_map(|v| v.to_le_bytes()).collect();
            let format = metrale_kernels::cpu::Format::BF16;
            let weights: Vec<Weight> =
                (0..copies).map(|_| Weight::new(cuda, format, n, k, &raw)).collect::<Result<_>>()?;
            for tokens in [1, 2, 4, 8, 16, 32, 64, 128, 512, 2048] {
                let x = random(cuda, tokens * k)?;
                let mut out = Buffer::<bf16>::zeroed(cuda, tokens * n)?;
                let seconds = median(cuda, copies.max(4), |i| {
                    let weight = &weights[i % copies];
                    linear(cuda, x.view(), weight, None, Epilogue::Store, &mut out.view_mut())
                })?;
                let moved = bytes + 2 * tokens * (n + k);
                let name = format!("linear bf16 [{n}, {k}], {tokens} rows");
                self.print(&name, seconds, moved, 2.0 * (tokens * n * k) as f64);
            }
        }
        Ok(())
    }

    fn quantized(&self) -> Result<()> {
        use metrale_kernels::cpu::Format::{Q4_0, Q4_K, Q5_0, Q6_K, Q8_0};
        let cuda = self.cuda;
        for format in [Q4_0, Q5_0, Q8_0, Q4_K, Q6_K] {
            for (n, k) in [(28_672, 8192), (4096, 4096)] {
                let raw: Vec<u8> = (0..n * format.row_bytes(k))
                    .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3f)
                    .collect();
                let copies = (WORKING_SET / raw.len()).clamp(1, 16);
                let weights: Vec<Weight> =
                    (0..copies).map(|_| Weight::new(cuda, format, n, k, &raw)).collect::<Result<_>>()?;
                for tokens in [1, 2, 4, 16, 128] {
                    let x = random(cuda, tokens * k)?;
                    let mut out = Buffer::<bf16>::zeroed(cuda, tokens * n)?;
                    let seconds = median(cuda, copies.max(4), |i| {
                        let weight = &weights[i % copies];
                        linear(cuda, x.view(), weight, None, Epilogue::Store, &mut out.view_mut())
                    })?;
                    let moved = weights[0].num_bytes() + 2 * tokens * (n + k);
                    let name = format!("linear {format:?} [{n}, {k}], {tokens} rows");
                    self.print(&name, seconds, moved, 2.0 * (tokens * n * k) as f64);
                }
            }
        }
        Ok(())
    }

    fn attention(&self) -> Result<()> {
        for (sequences, tokens, context) in [
            (1, 1, 1024),
            (1, 1, 8192),
            (1, 1, 65_536),
            (16, 1, 4096),
            (64, 1, 4096),
            (64, 1, 1024),
            (1, 512, 512),
            (1, 2048, 2048),
            (1, 512, 8192),
        ] {
            for (heads, kv_heads, dim) in [(32, 8, 128), (16, 2, 256), (9, 3, 64)] {
                self.attend((sequences, tokens, context), (heads, kv_heads, dim))?;
            }
        }
        Ok(())
    }

    fn attend(
        &self,
        (sequences, tokens, context): (usize, usize, usize),
        (heads, kv_heads, dim): (usize, usize, usize),
    ) -> Result<()> {
        const BLOCK: usize = 16;
        let cuda = self.cuda;
        let pages = context.div_ceil(BLOCK);
        let shape = KvShape {
            num_blocks: pages * sequences,
            block_size: BLOCK,
            num_kv_heads: kv_heads,
            head_dim: dim,
            value_dim: dim,
        };
        let mut cache = KvCache::new(cuda, shape, KvDtype::BF16)?;
        let slots = shape.num_blocks * BLOCK;
        let mut indices = Indices::new(cuda, slots)?;
        indices.set(cuda, &(0..slots as u32).collect::<Vec<_>>(), slots)?;
        let keys = random(cuda, slots * kv_heads * dim)?;
        write(cuda, &mut cache, keys.view(), keys.view(), &indices)?;
        // Pages of the sequences interleave.
        let tables: Vec<Vec<u32>> =
            (0..sequences).map(|s| (0..pages).map(|page| (page * sequences + s) as u32).collect()).collect();
        let batch: Vec<Sequence<'_>> = tables
            .iter()
            .map(|block_table| Sequence { num_tokens: tokens, context_len: context, block_table })
            .collect();
        let mut rows = Rows::new(cuda, sequences * tokens, sequences, pages)?;
        rows.set(cuda, shape, Visible::Causal, &batch)?;
        let q = random(cuda, sequences * tokens * heads * dim)?;
        let mut out = Buffer::<bf16>::zeroed(cuda, q.len())?;
        let attention = Attention {
            num_heads: heads,
            scale: 1.0 / (dim as f32).sqrt(),
            window: None,
            softcap: None,
            keys_per_split: None,
        };
        let seconds =
            median(cuda, 10, |_| paged(cuda, attention, q.view(), &cache, &rows, &mut out.view_mut()))?;
        let bytes = 2 * 2 * sequences * context * kv_heads * dim;
        let pairs = sequences * (tokens * context - tokens * (tokens - 1) / 2);
        let name =
            format!("attention {heads}/{kv_heads} x {dim}, {sequences} x {tokens} rows, context {context}");
        self.print(&name, seconds, bytes, 4.0 * (pairs * heads * dim) as f64);
        Ok(())
    }

    fn rows(&self) -> Result<()> {
        let cuda = self.cuda;
        let width = 4096;
        let weight = ones(cuda, width)?;
        for rows in [1, 64, 65_536] {
            let len = rows * width;
            let (x, y) = (random(cuda, len)?, random(cuda, len)?);
            let (mut residual, mut out) = (random(cuda, len)?, Buffer::<bf16>::zeroed(cuda, len)?);
            let weight = NormWeight::Plain(weight.view());
            let norm =
                median(cuda, 20, |_| rms_norm(cuda, x.view(), width, weight, 1e-6, &mut out.view_mut()))?;
            self.print(&format!("rms_norm bf16 [{rows}, {width}]"), norm, 4 * len, 0.0);
            let norm = median(cuda, 20, |_| {
                let mut data = out.view_mut();
                let out = RowsMut { width, data: &mut data };
                add_rms_norm(cuda, x.view(), &mut residual.view_mut(), weight, 1e-6, out)
            })?;
            self.print(&format!("add_rms_norm bf16 [{rows}, {width}]"), norm, 8 * len, 0.0);
            let gate =
                median(cuda, 20, |_| gated(cuda, Unary::Silu, x.view(), y.view(), &mut out.view_mut()))?;
            self.print(&format!("gated silu bf16 [{rows}, {width}]"), gate, 6 * len, 0.0);
        }
        Ok(())
    }

    fn recurrent(&self) -> Result<()> {
        let cuda = self.cuda;
        let (hk, hv, dim) = (16, 32, 128);
        let shape = DeltaShape {
            num_key_heads: hk,
            num_value_heads: hv,
            key_dim: dim,
            value_dim: dim,
            head_map: HeadMap::Grouped,
        };
        for (sequences, tokens) in [(1, 1), (64, 1), (1, 1024)] {
            let rows = sequences * tokens;
            let all: Vec<_> = (0..sequences).map(|slot| SlotSequence { num_tokens: tokens, slot }).collect();
            let mut slots = Slots::new(cuda, sequences)?;
            slots.set(cuda, &all, sequences)?;
            let (q, k, v) = (
                random(cuda, rows * hk * dim)?,
                random(cuda, rows * hk * dim)?,
                random(cuda, rows * hv * dim)?,
            );
            let (g, beta) = (ones(cuda, rows * hv)?, ones(cuda, rows * hv)?);
            let inputs =
                DeltaInputs { q: q.view(), k: k.view(), v: v.view(), g: g.view(), beta: beta.view() };
            let mut state = Buffer::<f32>::zeroed(cuda, sequences * hv * dim * dim)?;
            let mut out = Buffer::<bf16>::zeroed(cuda, v.len())?;
            let seconds = median(cuda, 10, |_| {
                let (mut state, mut out) = (state.view_mut(), out.view_mut());
                gated_delta_rule(cuda, shape, inputs, &slots, &mut state, &mut out)
            })?;
            let name = format!("gated_delta_rule {hk}/{hv} x {dim}, {sequences} x {tokens} rows");
            let work = 8.0 * (rows * hv * dim * dim) as f64;
            self.print(&name, seconds, 8 * state.len() + 8 * v.len(), work);

            let channels = 8192;
            let (x, weight) = (random(cuda, rows * channels)?, ones(cuda, 4 * channels)?);
            let conv = Conv1d { weight: weight.view(), bias: None, kernel: 4, activation: Unary::Silu };
            let mut state = Buffer::<f32>::zeroed(cuda, sequences * 3 * channels)?;
            let mut out = Buffer::<bf16>::zeroed(cuda, x.len())?;
            let seconds = median(cuda, 10, |_| {
                let (mut state, mut out) = (state.view_mut(), out.view_mut());
                causal_conv1d(cuda, conv, x.view(), &slots, &mut state, &mut out)
            })?;
            let name = format!("causal_conv1d {channels} x 4, {sequences} x {tokens} rows");
            self.print(&name, seconds, 8 * state.len() + 4 * x.len(), 0.0);
        }
        Ok(())
    }

    fn vocabulary(&self) -> Result<()> {
        let cuda = self.cuda;
        let (width, hidden) = (151_936, 4096);
        let raw: Vec<u8> =
            random(cuda, width * hidden)?.view().to_vec(cuda)?.iter().flat_map(|v| v.to_le_bytes()).collect();
        let table = Weight::new(cuda, metrale_kernels::cpu::Format::BF16, width, hidden, &raw)?;
        for rows in [1, 64] {
            let logits = random(cuda, rows * width)?.view().to_vec(cuda)?;
            let logits: Vec<f32> = logits.iter().map(|v| v.to_f32()).collect();
            let logits = Buffer::from_slice(cuda, &logits)?;
            let mut ids = Indices::new(cuda, rows)?;
            let seconds = median(cuda, 20, |_| argmax(cuda, logits.view(), width, &mut ids))?;
            self.print(&format!("argmax [{rows}, {width}]"), seconds, 4 * rows * width, 0.0);
            let k = 64;
            let (mut best, mut values) =
                (Buffer::<u32>::zeroed(cuda, rows * k)?, Buffer::<f32>::zeroed(cuda, rows * k)?);
            let seconds = median(cuda, 20, |_| {
                top_k(cuda, logits.view(), width, k, &mut best.view_mut(), &mut values.view_mut())
            })?;
            self.print(&format!("top_k {k} [{rows}, {width}]"), seconds, 4 * rows * width, 0.0);
            let mut out = Buffer::<bf16>::zeroed(cuda, rows * hidden)?;
            let seconds = median(cuda, 20, |_| gather(cuda, &table, &ids, &mut out.view_mut()))?;
            self.print(&format!("gather bf16 [{rows}, {hidden}]"), seconds, 4 * rows * hidden, 0.0);
        }
        Ok(())
    }
}
