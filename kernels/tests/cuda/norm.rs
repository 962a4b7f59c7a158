use metrale_kernels::cpu::norm as reference;
use metrale_kernels::cuda::norm::{
    Affine, NormWeight, RowsMut, add_rms_norm, l2_norm, layer_norm, rms_norm, rms_norm_in_place,
};
use metrale_kernels::cuda::{Buffer, Cuda, Element};

use crate::support::{Output, Rng, Tolerance, assert_close, cpu, for_elements, gpu, put, rounded};

const WIDTHS: [usize; 12] = [1, 7, 32, 64, 100, 128, 512, 520, 576, 1001, 4096, 8200];
const EPS: f32 = 1e-6;

fn weights<'a>(host: &'a [f32], device: &'a Buffer<f32>) -> [(reference::NormWeight<'a>, NormWeight<'a>); 3] {
    [
        (reference::NormWeight::None, NormWeight::None),
        (reference::NormWeight::Plain(host), NormWeight::Plain(device.view())),
        (reference::NormWeight::ZeroCentered(host), NormWeight::ZeroCentered(device.view())),
    ]
}

fn check_rms_norm<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(1);
    for width in WIDTHS {
        for rows in [1, 3, 17] {
            let x = rounded::<T>(&rng.hard(rows * width));
            let weight = rng.vec(width);
            let device = put::<f32>(cuda, &weight);
            for (host, device) in weights(&weight, &device) {
                let mut expected = vec![0.0; x.len()];
                reference::rms_norm(cpu(), &x, width, host, EPS, &mut expected).unwrap();
                let what = format!("{name} {rows} x {width}");
                let mut out = Output::<T>::new(cuda, x.len());
                let input = put::<T>(cuda, &x);
                out.write(|out| rms_norm(cuda, input.view(), width, device, EPS, out)).unwrap();
                assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(1e-30, 1e-5), &what);
                let mut out = Output::<T>::holding(cuda, &x);
                out.write(|x| rms_norm_in_place(cuda, x, width, device, EPS)).unwrap();
                assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(1e-30, 1e-5), &what);
            }
        }
    }
}

fn check_add_rms_norm<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(2);
    for width in WIDTHS {
        let rows = 5;
        let (x, r) = (rounded::<T>(&rng.hard(rows * width)), rounded::<T>(&rng.hard(rows * width)));
        let weight = rng.vec(width);
        let sum: Vec<f32> = x.iter().zip(&r).map(|(x, r)| x + r).collect();
        let sum = rounded::<T>(&sum);
        let mut expected = vec![0.0; x.len()];
        reference::rms_norm(cpu(), &sum, width, reference::NormWeight::Plain(&weight), EPS, &mut expected)
            .unwrap();
        let (input, weight) = (put::<T>(cuda, &x), put::<f32>(cuda, &weight));
        let (mut residual, mut out) = (Output::<T>::holding(cuda, &r), Output::<T>::new(cuda, x.len()));
        residual
            .write(|residual| {
                out.write(|data| {
                    let weight = NormWeight::Plain(weight.view());
                    add_rms_norm(cuda, input.view(), residual, weight, EPS, RowsMut { width, data })
                })
            })
            .unwrap();
        let what = format!("{name} {width}");
        assert_close(&residual.read(cuda), &sum, Tolerance { absolute: 0.0, relative: 0.0 }, &what);
        assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(1e-30, 1e-5), &what);
    }
}

fn check_layer_norm<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(3);
    for width in WIDTHS {
        let x = rounded::<T>(&rng.vec(6 * width));
        let (w, b) = (rng.vec(width), rng.vec(width));
        let (weight, bias) = (put::<f32>(cuda, &w), put::<f32>(cuda, &b));
        for (has_weight, has_bias) in [(false, false), (true, false), (true, true)] {
            let host =
                reference::Affine { weight: has_weight.then_some(&w[..]), bias: has_bias.then_some(&b[..]) };
            let mut expected = vec![0.0; x.len()];
            reference::layer_norm(cpu(), &x, width, host, 1e-5, &mut expected).unwrap();
            let affine =
                Affine { weight: has_weight.then(|| weight.view()), bias: has_bias.then(|| bias.view()) };
            let mut out = Output::<T>::new(cuda, x.len());
            let input = put::<T>(cuda, &x);
            out.write(|out| layer_norm(cuda, input.view(), width, affine, 1e-5, out)).unwrap();
            let what = format!("{name} {width}");
            assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(2e-5, 1e-5), &what);
        }
    }
}

fn check_l2_norm<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(4);
    for width in WIDTHS {
        let mut expected = rounded::<T>(&rng.hard(9 * width));
        let mut out = Output::<T>::holding(cuda, &expected);
        out.write(|x| l2_norm(cuda, x, width, EPS, 0.25)).unwrap();
        reference::l2_norm(cpu(), &mut expected, width, EPS, 0.25).unwrap();
        assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(1e-30, 1e-5), &format!("{name} {width}"));
    }
}

#[test]
fn rms_norm_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_rms_norm);
}

#[test]
fn add_rms_norm_matches_the_cpu_and_updates_the_residual() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_add_rms_norm);
}

#[test]
fn layer_norm_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_layer_norm);
}

#[test]
fn l2_norm_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_l2_norm);
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let Some(cuda) = gpu() else { return };
    let mut x = Rng::new(5).vec(3 * 64);
    (x[64 + 3], x[128]) = (f32::NAN, f32::INFINITY);
    let mut expected = vec![0.0; x.len()];
    reference::rms_norm(cpu(), &x, 64, reference::NormWeight::None, EPS, &mut expected).unwrap();
    let mut out = Output::<f32>::new(cuda, x.len());
    let input = put::<f32>(cuda, &x);
    out.write(|out| rms_norm(cuda, input.view(), 64, NormWeight::None, EPS, out)).unwrap();
    assert_close(&out.read(cuda), &expected, Tolerance { absolute: 0.0, relative: 1e-5 }, "rows");
}

#[test]
fn wrong_lengths_are_refused_and_nothing_is_written() {
    let Some(cuda) = gpu() else { return };
    let (x, weight) = (put::<f32>(cuda, &[1.0; 64]), put::<f32>(cuda, &[1.0; 31]));
    let mut out = Output::<f32>::new(cuda, 64);
    for (width, weight) in
        [(33, NormWeight::None), (0, NormWeight::None), (32, NormWeight::Plain(weight.view()))]
    {
        out.write(|out| rms_norm(cuda, x.view(), width, weight, EPS, out)).unwrap_err();
    }
    assert!(out.read(cuda).iter().all(|v| v.is_nan()));
}
