use half::bf16;
use metrale_kernels::cpu::linear::{Activations, Epilogue as HostEpilogue, Projection, linear as reference};
use metrale_kernels::cpu::{Format, Weight as HostWeight, embedding as host_embedding};
use metrale_kernels::cuda::embedding::gather;
use metrale_kernels::cuda::linear::{Epilogue, linear};
use metrale_kernels::cuda::{Cuda, Element, Indices, Weight};

use crate::blocks::{dequantize, random};
use crate::support::{Output, Rng, Tolerance, assert_close, cpu, for_elements, gpu, put, rounded};

fn formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| format.is_quantized())
}

fn check_gather<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(1);
    for format in formats() {
        for (vocabulary, width) in [(1, 256), (77, 512), (50, 2816)] {
            let bytes = random(format, &mut rng, vocabulary, width);
            let ids: Vec<u32> = (0..33).map(|_| rng.below(vocabulary) as u32).collect();
            let host = HostWeight::from_vec(format, vocabulary, width, bytes.clone()).unwrap();
            let mut expected = vec![0.0; ids.len() * width];
            host_embedding::gather(cpu(), &host, &ids, &mut expected).unwrap();
            let table = Weight::new(cuda, format, vocabulary, width, &bytes).unwrap();
            let mut indices = Indices::new(cuda, ids.len()).unwrap();
            indices.set(cuda, &ids, vocabulary).unwrap();
            let mut out = Output::<T>::new(cuda, expected.len());
            out.write(|out| gather(cuda, &table, &indices, out)).unwrap();
            let what = format!("{name} {format:?} {vocabulary} x {width}");
            assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(1e-6, 1e-6), &what);
        }
    }
}

#[test]
fn gathered_rows_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_gather);
}

/// Whether the device rounds x to int8, too.
fn rounds<X: Element>(tokens: usize) -> bool {
    X::BYTES == 4 || tokens <= 16
}

fn check_linear<X: Element, O: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(2);
    for format in formats() {
        for (n, k) in [(1, 256), (33, 512), (70, 2816)] {
            let bytes = random(format, &mut rng, n, k);
            let rows: Vec<Vec<f64>> =
                bytes.chunks_exact(format.row_bytes(k)).map(|row| dequantize(format, row)).collect();
            let host = HostWeight::from_vec(format, n, k, bytes.clone()).unwrap();
            let weight = Weight::new(cuda, format, n, k, &bytes).unwrap();
            let bias = rng.vec(n);
            let device_bias = put::<f32>(cuda, &bias);
            for tokens in [1, 2, 3, 4, 7, 16, 17, 40] {
                let x = rounded::<X>(&rng.vec(tokens * k));
                let residual = rounded::<O>(&rng.vec(tokens * n));
                let mut expected = vec![0.0; tokens * n];
                let projection = Projection::new(&host, &mut expected)
                    .bias(Some(&bias))
                    .epilogue(HostEpilogue::Residual(&residual));
                let activations = if rounds::<X>(tokens) { Activations::Int8 } else { Activations::F32 };
                reference(cpu(), &x, activations, &mut [projection]).unwrap();
                let (input, device_residual) = (put::<X>(cuda, &x), put::<O>(cuda, &residual));
                let epilogue = Epilogue::Residual(device_residual.view());
                let mut out = Output::<O>::new(cuda, tokens * n);
                let bias = Some(device_bias.view());
                out.write(|out| linear(cuda, input.view(), &weight, bias, epilogue, out)).unwrap();
                // Rounding errors are relative to the sum of magnitudes.
                let largest = (0..tokens * n)
                    .map(|i| {
                        let x = x[i / n * k..][..k].iter();
                        rows[i % n].iter().zip(x).map(|(w, x)| (w * f64::from(*x)).abs()).sum::<f64>()
                    })
                    .fold(0.0, f64::max) as f32;
                // An expanded weight is rounded to bf16, and its products before the residual.
                let rounding = if rounds::<X>(tokens) { 2e-6 } else { 1.0 / 300.0 };
                let tolerance = Tolerance::of::<O>(1e-5 + rounding * largest, 1e-5);
                let what = format!("{name} {format:?} [{n}, {k}], {tokens} rows");
                assert_close(&out.read(cuda), &expected, tolerance, &what);
            }
        }
    }
}

#[test]
fn products_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    check_linear::<f32, f32>(cuda, "f32");
    check_linear::<bf16, f32>(cuda, "bf16 to f32");
    check_linear::<bf16, bf16>(cuda, "bf16");
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let Some(cuda) = gpu() else { return };
    let (n, k) = (8, 256);
    let bytes = random(Format::Q4_K, &mut Rng::new(3), n, k);
    let weight = Weight::new(cuda, Format::Q4_K, n, k, &bytes).unwrap();
    let mut x = Rng::new(4).vec(3 * k);
    (x[k + 40], x[2 * k]) = (f32::NAN, f32::INFINITY);
    let input = put::<f32>(cuda, &x);
    let mut out = Output::<f32>::new(cuda, 3 * n);
    out.write(|out| linear(cuda, input.view(), &weight, None, Epilogue::Store, out)).unwrap();
    let found = out.read(cuda);
    assert!(found[..n].iter().all(|v| v.is_finite()));
    assert!(found[n..].iter().all(|v| !v.is_finite()), "{found:?}");
}
