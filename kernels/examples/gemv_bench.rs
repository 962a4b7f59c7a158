//! Prints the speed of linear layers: `cargo run --release -p metrale-kernels --example gemv_bench [threads...]`.
//!
//! Shapes are those of SmolLM2-135M and Qwen2.5-0.5B. At T = 1 each shape has as many copies of the weight as exceed
//! the last-level cache, so that GB/s are rates from memory.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use metrale_kernels::cpu::linear::{Activations, Projection, linear};
use metrale_kernels::cpu::{Cpu, Format, Weight};

/// More than the last-level cache of the machines in question.
const WORKING_SET: usize = 128 << 20;
const REPEATS: usize = 5;

fn main() {
    let threads: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let threads = if threads.is_empty() { vec![1, 2] } else { threads };
    let shapes: &[(&str, Format, usize, usize)] = &[
        ("SmolLM2 qkv", Format::Q4_1, 960, 576),
        ("SmolLM2 gate+up", Format::Q4_1, 3072, 576),
        ("SmolLM2 down", Format::Q4_1, 576, 1536),
        ("SmolLM2 head", Format::Q8_0, 49152, 576),
        ("Qwen qkv", Format::Q5_0, 1152, 896),
        ("Qwen gate+up", Format::Q5_0, 9728, 896),
        ("Qwen down", Format::Q4_K, 896, 4864),
        ("Qwen down", Format::Q6_K, 896, 4864),
        ("Qwen head", Format::Q8_0, 151_936, 896),
        ("F32", Format::F32, 1536, 576),
        ("BF16", Format::BF16, 4864, 896),
    ];
    for num_threads in threads {
        let cpu = Cpu::new(num_threads);
        println!("{} threads, {}, dispatch {:.2} us", num_threads, cpu.isa().name(), dispatch(&cpu));
        for &(name, format, num_rows, num_cols) in shapes {
            for activations in [Activations::Int8, Activations::F32] {
                if format.is_quantized() || activations == Activations::F32 {
                    shape(&cpu, name, format, (num_rows, num_cols), activations);
                }
            }
        }
    }
}

fn dispatch(cpu: &Cpu) -> f64 {
    let start = Instant::now();
    for _ in 0..20_000 {
        cpu.pool().run(|_, _| {});
    }
    start.elapsed().as_secs_f64() / 20_000.0 * 1e6
}

fn shape(
    cpu: &Cpu,
    name: &str,
    format: Format,
    (num_rows, num_cols): (usize, usize),
    activations: Activations,
) {
    let size = num_rows * format.row_bytes(num_cols);
    let copies = (WORKING_SET / size).clamp(1, 64);
    let bytes: Vec<u8> = (0..size).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3f).collect();
    let weights: Vec<Weight> = (0..copies)
        .filter_map(|_| Weight::from_vec(format, num_rows, num_cols, bytes.clone()).ok())
        .collect();
    let (gbs, _) = measure(cpu, &weights, 1, activations);
    let (_, decode4) = measure(cpu, &weights, 4, activations);
    let (_, prefill) = measure(cpu, &weights[..1], 128, activations);
    println!(
        "  {name:16} {format:?} [{num_rows}, {num_cols}] {activations:?}: T=1 {gbs:5.1} GB/s, T=4 {decode4:5.0} GFLOP/s, \
         T=128 {prefill:5.0} GFLOP/s"
    );
}

/// (GB/s of weights, GFLOP/s), best of several passes over all weights.
fn measure(cpu: &Cpu, weights: &[Weight], tokens: usize, activations: Activations) -> (f64, f64) {
    let Some(first) = weights.first() else { return (0.0, 0.0) };
    let (n, k) = (first.num_rows(), first.num_cols());
    let x: Vec<f32> = (0..tokens * k).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let mut out = vec![0.0; tokens * n];
    let best = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            for weight in weights {
                let done = linear(cpu, &x, activations, &mut [Projection::new(weight, &mut out)]);
                assert!(done.is_ok());
            }
            start.elapsed().as_secs_f64() / weights.len() as f64
        })
        .fold(f64::INFINITY, f64::min);
    (first.num_bytes_read() as f64 / best / 1e9, 2.0 * (tokens * n * k) as f64 / best / 1e9)
}
