//! Linear layers against a dequantise-then-dot in f64, and their independence of batch, threads and tiling.

use metrale_kernels::cpu::elementwise::Unary;
use metrale_kernels::cpu::linear::{Activations, Epilogue, Projection, linear};
use metrale_kernels::cpu::{Cpu, Format, Isa, Weight};

use crate::quantized;
use crate::support::{Rng, TOKENS, assert_close, assert_same_bits, cpus, poisoned};

const MODES: [Activations; 2] = [Activations::F32, Activations::Int8];

struct Case {
    format: Format,
    weight: Weight,
    values: Vec<f64>,
    num_rows: usize,
    num_cols: usize,
}

fn case(rng: &mut Rng, format: Format, num_rows: usize, num_cols: usize) -> Case {
    let bytes = quantized::random(format, rng, num_rows, num_cols);
    let values = quantized::matrix(format, &bytes, num_cols);
    Case {
        format,
        weight: Weight::from_vec(format, num_rows, num_cols, bytes).unwrap(),
        values,
        num_rows,
        num_cols,
    }
}

/// (x wᵀ, Σ |x w|).
fn reference(case: &Case, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut y = Vec::new();
    let mut size = Vec::new();
    for x in x.chunks_exact(case.num_cols) {
        for w in case.values.chunks_exact(case.num_cols) {
            y.push(x.iter().zip(w).map(|(a, b)| a * b).sum());
            size.push(x.iter().zip(w).map(|(a, b)| (a * b).abs()).sum());
        }
    }
    (y, size)
}

fn seen(mode: Activations, format: Format, x: &[f32]) -> Vec<f64> {
    if mode == Activations::Int8 && format.is_quantized() {
        quantized::round_activations(x)
    } else {
        x.iter().map(|&v| f64::from(v)).collect()
    }
}

fn product(cpu: &Cpu, case: &Case, mode: Activations, x: &[f32]) -> Vec<f32> {
    let mut out = poisoned(x.len() / case.num_cols * case.num_rows);
    linear(cpu, x, mode, &mut [Projection::new(&case.weight, &mut out)]).unwrap();
    out
}

fn shapes(format: Format) -> Vec<(usize, usize)> {
    match format.block_len() {
        1 => vec![(1, 1), (5, 7), (16, 64), (33, 129), (20, 600)],
        32 => vec![(1, 32), (15, 96), (16, 64), (50, 608)],
        _ => vec![(3, 256), (16, 512), (41, 1024)],
    }
}

#[test]
fn products_match_dequantised_dot_products() {
    let mut rng = Rng::new(10);
    let cpus = cpus(&[1, 2]);
    for format in Format::ALL {
        for (num_rows, num_cols) in shapes(format) {
            let case = case(&mut rng, format, num_rows, num_cols);
            for tokens in TOKENS {
                let x = rng.hard(tokens * num_cols);
                for mode in MODES {
                    let (expected, size) = reference(&case, &seen(mode, format, &x));
                    for cpu in &cpus {
                        let out = product(cpu, &case, mode, &x);
                        let what = format!(
                            "{format:?} {mode:?} {:?} T={tokens} [{num_rows}, {num_cols}]",
                            cpu.isa()
                        );
                        // Terms of Σ (q - offset) x and Σ min x cancel, so |w x| understates the rounding a little.
                        assert_close(&out, &expected, |i| 4e-6 * size[i] + 1e-7, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn integer_products_have_the_same_bits_at_every_level() {
    let mut rng = Rng::new(11);
    let portable = Cpu::with_isa(1, Isa::Portable).unwrap();
    let cpus = cpus(&[2]);
    for format in Format::ALL.into_iter().filter(|f| f.is_quantized()) {
        for (num_rows, num_cols) in shapes(format) {
            let case = case(&mut rng, format, num_rows, num_cols);
            let x = rng.hard(7 * num_cols);
            let expected = product(&portable, &case, Activations::Int8, &x);
            for cpu in &cpus {
                let out = product(cpu, &case, Activations::Int8, &x);
                assert_same_bits(&out, &expected, &format!("{format:?} {:?}", cpu.isa()));
            }
        }
    }
}

#[test]
fn extreme_quants_do_not_overflow() {
    for cpu in cpus(&[1]) {
        for format in Format::ALL.into_iter().filter(|f| f.is_quantized()) {
            for fill in [0x00u8, 0x7f, 0x80, 0xff] {
                let num_cols = format.block_len();
                let mut bytes = quantized::random(format, &mut Rng::new(9), 16, num_cols);
                for block in bytes.chunks_exact_mut(format.block_bytes()) {
                    let old = block.to_vec();
                    block.fill(fill);
                    let keep: &[usize] = match format {
                        Format::Q6_K => &[208],
                        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
                        _ => &[0, 2],
                    };
                    keep.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&old[at..at + 2]));
                }
                let values = quantized::matrix(format, &bytes, num_cols);
                let weight = Weight::from_vec(format, 16, num_cols, bytes).unwrap();
                let case = Case { format, weight, values, num_rows: 16, num_cols };
                for sign in [1.0, -1.0] {
                    let x = vec![sign; num_cols];
                    let (expected, size) = reference(&case, &seen(Activations::Int8, case.format, &x));
                    let out = product(&cpu, &case, Activations::Int8, &x);
                    assert_close(
                        &out,
                        &expected,
                        |i| 4e-6 * size[i] + 1e-6,
                        &format!("{format:?} {fill:#x}"),
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_batch_or_the_threads() {
    let mut rng = Rng::new(12);
    for format in Format::ALL {
        let num_cols = if format.block_len() == 1 { 203 } else { 2 * format.block_len() };
        let case = case(&mut rng, format, 53, num_cols);
        let x = rng.hard(130 * num_cols);
        for mode in MODES {
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
                let one = Cpu::with_isa(1, isa).unwrap();
                let three = Cpu::with_isa(3, isa).unwrap();
                let all = product(&three, &case, mode, &x);
                for tokens in 1..=9 {
                    for start in [0, 1, 64, 121] {
                        let part = product(&one, &case, mode, &x[start * num_cols..][..tokens * num_cols]);
                        let what = format!("{format:?} {mode:?} {isa:?} rows {start}.. of {tokens}");
                        assert_same_bits(&part, &all[start * 53..][..tokens * 53], &what);
                    }
                }
            }
        }
    }
}

#[test]
fn a_slice_of_rows_gives_the_same_bits_as_the_whole() {
    let mut rng = Rng::new(13);
    for cpu in cpus(&[2]) {
        for format in Format::ALL {
            let num_cols = 2 * format.block_len().max(20);
            let whole = case(&mut rng, format, 70, num_cols);
            let x = rng.vec(6 * num_cols);
            for mode in MODES {
                let all = product(&cpu, &whole, mode, &x);
                for rows in [0..16, 16..70, 3..9, 5..40, 13..35, 69..70] {
                    let weight = whole.weight.slice_rows(rows.clone()).unwrap();
                    let mut out = poisoned(6 * rows.len());
                    linear(&cpu, &x, mode, &mut [Projection::new(&weight, &mut out)]).unwrap();
                    for t in 0..6 {
                        let expected = &all[t * 70..][rows.clone()];
                        assert_same_bits(
                            &out[t * rows.len()..][..rows.len()],
                            expected,
                            &format!("{format:?} {rows:?}"),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn projections_that_share_x_equal_single_ones() {
    let mut rng = Rng::new(14);
    for cpu in cpus(&[1, 2]) {
        for mode in MODES {
            let cases = [
                case(&mut rng, Format::Q4_1, 48, 512),
                case(&mut rng, Format::F32, 17, 512),
                case(&mut rng, Format::Q6_K, 16, 512),
                case(&mut rng, Format::Q8_0, 1, 512),
            ];
            for tokens in [1, 5, 70] {
                let x = rng.vec(tokens * 512);
                let mut outs: Vec<_> = cases.iter().map(|c| poisoned(tokens * c.num_rows)).collect();
                let mut projections: Vec<_> =
                    cases.iter().zip(&mut outs).map(|(c, out)| Projection::new(&c.weight, out)).collect();
                linear(&cpu, &x, mode, &mut projections).unwrap();
                for (case, out) in cases.iter().zip(&outs) {
                    assert_same_bits(out, &product(&cpu, case, mode, &x), "shared x");
                }
            }
        }
    }
}

#[test]
fn epilogues_do_what_they_say() {
    let mut rng = Rng::new(15);
    for cpu in cpus(&[2]) {
        let (tokens, n) = (5, 35);
        let gate = case(&mut rng, Format::Q5_0, n, 64);
        let up = case(&mut rng, Format::Q8_0, n + 3, 64);
        let up_weight = up.weight.slice_rows(3..n + 3).unwrap();
        let (x, bias, up_bias) = (rng.vec(tokens * 64), rng.vec(n), rng.vec(n));
        let residual = rng.vec(tokens * n);
        let y = product(&cpu, &gate, Activations::Int8, &x);
        let run = |epilogue, start: &[f32]| {
            let mut out = start.to_vec();
            let projection = Projection::new(&gate.weight, &mut out).bias(Some(&bias)).epilogue(epilogue);
            linear(&cpu, &x, Activations::Int8, &mut [projection]).unwrap();
            out
        };
        let biased: Vec<f32> = y.iter().enumerate().map(|(i, y)| y + bias[i % n]).collect();
        let added: Vec<f32> = biased.iter().zip(&residual).map(|(a, b)| a + b).collect();
        assert_same_bits(&run(Epilogue::Store, &poisoned(tokens * n)), &biased, "bias");
        assert_same_bits(&run(Epilogue::Accumulate, &residual), &added, "accumulate");
        assert_same_bits(&run(Epilogue::Residual(&residual), &poisoned(tokens * n)), &added, "residual");
        let full = product(&cpu, &up, Activations::Int8, &x);
        let expected: Vec<f64> = (0..tokens * n)
            .map(|i| {
                let g = f64::from(biased[i]);
                let u = f64::from(full[i / n * (n + 3) + 3 + i % n] + up_bias[i % n]);
                g / (1.0 + (-g).exp()) * u
            })
            .collect();
        let epilogue =
            Epilogue::Gated { activation: Unary::Silu.into(), up: &up_weight, up_bias: Some(&up_bias) };
        let out = run(epilogue, &poisoned(tokens * n));
        assert_close(&out, &expected, |i| 1e-6 * (expected[i].abs() + 1.0), "gated");
    }
}

#[test]
fn non_finite_activations_show() {
    let mut rng = Rng::new(16);
    for cpu in cpus(&[1]) {
        for format in [Format::F32, Format::BF16, Format::Q4_1, Format::Q8_0, Format::Q6_K] {
            let case = case(&mut rng, format, 16, 512);
            for mode in MODES {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = rng.vec(2 * 512);
                    x[600] = bad;
                    let out = product(&cpu, &case, mode, &x);
                    assert!(out[..16].iter().all(|v| v.is_finite()), "{format:?} {mode:?} {bad}: other row");
                    assert!(
                        out[16..].iter().all(|v| !v.is_finite()),
                        "{format:?} {mode:?} {bad}: {:?}",
                        &out[16..]
                    );
                }
            }
        }
    }
}

#[test]
fn wrong_shapes_are_errors_and_write_nothing() {
    let cpu = Cpu::new(1);
    let mut rng = Rng::new(17);
    let a = case(&mut rng, Format::Q4_0, 16, 64).weight;
    let b = case(&mut rng, Format::Q4_0, 16, 32).weight;
    let x = rng.vec(64);
    let mut out = vec![7.0; 16];
    let mut other = vec![7.0; 16];
    let run = |x: &[f32], p: &mut [Projection<'_>]| linear(&cpu, x, Activations::Int8, p);
    assert!(run(&x[..63], &mut [Projection::new(&a, &mut out)]).is_err());
    assert!(run(&x, &mut [Projection::new(&a, &mut out[..15])]).is_err());
    assert!(run(&x, &mut [Projection::new(&a, &mut out).bias(Some(&x[..15]))]).is_err());
    assert!(run(&x, &mut [Projection::new(&a, &mut out).epilogue(Epilogue::Residual(&x[..15]))]).is_err());
    assert!(run(&x, &mut [Projection::new(&a, &mut out), Projection::new(&b, &mut other)]).is_err());
    let gated = Epilogue::Gated { activation: Unary::Silu.into(), up: &b, up_bias: None };
    assert!(run(&x, &mut [Projection::new(&a, &mut out).epilogue(gated)]).is_err());
    assert_eq!(out, vec![7.0; 16]);
    assert!(run(&[], &mut [Projection::new(&a, &mut [])]).is_ok());
}
