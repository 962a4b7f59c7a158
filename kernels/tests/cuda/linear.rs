use half::bf16;
use metrale_kernels::cpu::linear::{Activations, Epilogue as HostEpilogue, Projection, linear as reference};
use metrale_kernels::cpu::{Format, Weight as HostWeight};
use metrale_kernels::cuda::linear::{Epilogue, linear};
use metrale_kernels::cuda::{Cuda, Element, Weight};

use crate::embedding::bytes;
use crate::support::{Output, Rng, Tolerance, assert_close, cpu, gpu, put, rounded};

const SHAPES: [(usize, usize); 8] =
    [(1, 8), (17, 32), (100, 7), (576, 576), (1000, 96), (64, 4096), (33, 1000), (9, 40)];
const TOKENS: [usize; 12] = [1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 100];

fn check<X: Element, O: Element + Default>(cuda: &Cuda, format: Format) {
    let mut rng = Rng::new(1);
    for (n, k) in SHAPES {
        let weight = bytes(format, &rng.vec(n * k));
        let host = HostWeight::from_vec(format, n, k, weight.clone()).unwrap();
        let weight = Weight::new(cuda, format, n, k, &weight).unwrap();
        let bias = rng.vec(n);
        let device_bias = put::<f32>(cuda, &bias);
        for tokens in TOKENS {
            let x = rounded::<X>(&rng.vec(tokens * k));
            let residual = rounded::<O>(&rng.vec(tokens * n));
            let (input, device_residual) = (put::<X>(cuda, &x), put::<O>(cuda, &residual));
            for case in 0..4 {
                let with_bias = case == 1 || case == 3;
                let mut expected = residual.clone();
                let epilogue = match case {
                    0 | 1 => HostEpilogue::Store,
                    2 => HostEpilogue::Accumulate,
                    _ => HostEpilogue::Residual(&residual),
                };
                let projection = Projection::new(&host, &mut expected)
                    .bias(with_bias.then_some(&bias[..]))
                    .epilogue(epilogue);
                reference(cpu(), &x, Activations::F32, &mut [projection]).unwrap();
                let (epilogue, mut out) = match case {
                    0 | 1 => (Epilogue::Store, Output::<O>::new(cuda, tokens * n)),
                    2 => (Epilogue::Accumulate, Output::holding(cuda, &residual)),
                    _ => (Epilogue::Residual(device_residual.view()), Output::new(cuda, tokens * n)),
                };
                let bias = with_bias.then(|| device_bias.view());
                out.write(|out| linear(cuda, input.view(), &weight, bias, epilogue, out)).unwrap();
                let what = format!("{format:?} [{n}, {k}], {tokens} rows, case {case}");
                // The library rounds the product before the bias or the residual is added.
                let rounding = O::pick(0.0, if case > 0 { (k as f32).sqrt() * 1.5 / 256.0 } else { 0.0 });
                let tolerance = Tolerance::of::<O>(1e-5 + 5e-7 * k as f32 + rounding, 1e-5);
                assert_close(&out.read(cuda), &expected, tolerance, &what);
            }
        }
    }
}

#[test]
fn f32_activations_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for format in [Format::F32, Format::BF16, Format::F16] {
        check::<f32, f32>(cuda, format);
    }
}

#[test]
fn bf16_activations_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for format in [Format::BF16, Format::F32, Format::F16] {
        check::<bf16, bf16>(cuda, format);
    }
}

#[test]
fn bf16_activations_give_f32_results() {
    let Some(cuda) = gpu() else { return };
    for format in [Format::BF16, Format::F32, Format::F16] {
        check::<bf16, f32>(cuda, format);
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours_within_a_kernel() {
    let Some(cuda) = gpu() else { return };
    let (n, k) = (300, 512);
    let mut rng = Rng::new(2);
    let weight = Weight::new(cuda, Format::BF16, n, k, &bytes(Format::BF16, &rng.vec(n * k))).unwrap();
    let x = put::<bf16>(cuda, &rng.vec(16 * k));
    let run = |tokens: usize| {
        let mut out = Output::<f32>::new(cuda, tokens * n);
        let x = x.view().range(0..tokens * k).unwrap();
        out.write(|out| linear(cuda, x, &weight, None, Epilogue::Store, out)).unwrap();
        out.read(cuda)
    };
    for (few, many) in [(2, 8), (3, 8), (5, 7)] {
        assert_eq!(run(few), run(many)[..few * n], "{few} and {many} rows");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(cuda) = gpu() else { return };
    let weight = Weight::new(cuda, Format::F32, 4, 8, &[0; 128]).unwrap();
    let x = put::<f32>(cuda, &[1.0; 16]);
    let mut out = Output::<f32>::new(cuda, 7);
    let error = out.write(|out| linear(cuda, x.view(), &weight, None, Epilogue::Store, out)).unwrap_err();
    assert_eq!(error.to_string(), "linear: `out` has 7 elements, expected 8");
    let mut out = Output::<bf16>::new(cuda, 8);
    out.write(|out| linear(cuda, x.view(), &weight, None, Epilogue::Store, out)).unwrap_err();
    assert!(Weight::new(cuda, Format::Q4_0, 1, 33, &[0; 18]).is_err());
    assert!(Weight::new(cuda, Format::F32, 4, 8, &[0; 127]).is_err());
}
