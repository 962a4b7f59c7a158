use metrale_kernels::cpu::elementwise as reference;
use metrale_kernels::cuda::elementwise::{
    Binary, Columns, Unary, add_bias, binary, binary_in_place, clamp_in_place, copy_columns, gated,
    gated_halves, mul_rows, scale, to_bf16, to_f32, unary, unary_in_place,
};
use metrale_kernels::cuda::{Cuda, Element};

use crate::support::{Output, Rng, Tolerance, assert_close, cpu, for_elements, gpu, put, rounded};

const UNARY: [Unary; 18] = [
    Unary::Identity,
    Unary::Silu,
    Unary::Sigmoid,
    Unary::GeluTanh,
    Unary::GeluErf,
    Unary::Relu,
    Unary::Softplus,
    Unary::Tanh,
    Unary::Exp,
    Unary::Neg,
    Unary::Abs,
    Unary::Sqrt,
    Unary::Rsqrt,
    Unary::Recip,
    Unary::Square,
    Unary::Log,
    Unary::Cos,
    Unary::Sin,
];
const BINARY: [Binary; 8] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Min,
    Binary::Max,
    Binary::MulSigmoid,
    Binary::SiluMul,
];
const LENGTHS: [usize; 6] = [1, 7, 8, 255, 4096, 100_003];

fn tolerance<T: Element>() -> Tolerance {
    Tolerance::of::<T>(1e-35, 5e-6)
}

fn check_unary<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(1);
    for f in UNARY {
        for len in LENGTHS {
            let x = rounded::<T>(&rng.wild(len));
            let mut expected = vec![0.0; len];
            reference::unary(cpu(), f, &x, &mut expected).unwrap();
            let expected = rounded::<T>(&expected);
            let what = format!("{name} {f:?} {len}");
            let mut tolerance = tolerance::<T>();
            if f == Unary::GeluTanh {
                // 1 + tanh cancels in the negative tail.
                tolerance.absolute = 2e-6;
            }
            let (input, mut out) = (put::<T>(cuda, &x), Output::<T>::new(cuda, len));
            out.write(|out| unary(cuda, f, input.view(), out)).unwrap();
            assert_close(&out.read(cuda), &expected, tolerance, &what);
            let mut out = Output::<T>::holding(cuda, &x);
            out.write(|x| unary_in_place(cuda, f, x)).unwrap();
            assert_close(&out.read(cuda), &expected, tolerance, &what);
        }
    }
}

fn check_binary<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(2);
    for f in BINARY {
        for (rows, width) in [(1, 1), (1, 100_003), (3, 7), (5, 8), (9, 1000), (64, 576)] {
            for b_len in [width, rows * width] {
                let (a, b) = (rounded::<T>(&rng.wild(rows * width)), rounded::<T>(&rng.wild(b_len)));
                let mut expected = vec![0.0; a.len()];
                reference::binary(cpu(), f, &a, &b, &mut expected).unwrap();
                let expected = rounded::<T>(&expected);
                let what = format!("{name} {f:?} {rows} x {width}, {b_len}");
                let (left, right) = (put::<T>(cuda, &a), put::<T>(cuda, &b));
                let mut out = Output::<T>::new(cuda, a.len());
                out.write(|out| binary(cuda, f, left.view(), right.view(), out)).unwrap();
                assert_close(&out.read(cuda), &expected, tolerance::<T>(), &what);
                let mut out = Output::<T>::holding(cuda, &a);
                out.write(|a| binary_in_place(cuda, f, a, right.view())).unwrap();
                assert_close(&out.read(cuda), &expected, tolerance::<T>(), &what);
            }
        }
    }
}

fn check_gated<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(3);
    for (rows, width) in [(1, 7), (3, 1536), (17, 100)] {
        let len = rows * width;
        let (gate, up) = (rounded::<T>(&rng.hard(len)), rounded::<T>(&rng.hard(len)));
        let mut expected = vec![0.0; len];
        reference::gated(cpu(), Unary::Silu, &gate, &up, &mut expected).unwrap();
        let (g, u, mut out) = (put::<T>(cuda, &gate), put::<T>(cuda, &up), Output::<T>::new(cuda, len));
        out.write(|out| gated(cuda, Unary::Silu, g.view(), u.view(), out)).unwrap();
        assert_close(&out.read(cuda), &expected, tolerance::<T>(), name);
        let halves: Vec<f32> =
            gate.chunks(width).zip(up.chunks(width)).flat_map(|(g, u)| [g, u].concat()).collect();
        let (x, mut out) = (put::<T>(cuda, &halves), Output::<T>::new(cuda, len));
        out.write(|out| gated_halves(cuda, Unary::Silu, x.view(), width, out)).unwrap();
        assert_close(&out.read(cuda), &expected, tolerance::<T>(), name);
    }
}

fn check_rows<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(4);
    let (rows, width) = (13, 37);
    let (x, factors, bias) = (rounded::<T>(&rng.hard(rows * width)), rng.vec(rows), rng.vec(width));
    let mut expected = x.clone();
    reference::mul_rows(cpu(), &mut expected, &factors).unwrap();
    let (mut out, factors) = (Output::<T>::holding(cuda, &x), put::<f32>(cuda, &factors));
    out.write(|x| mul_rows(cuda, x, factors.view())).unwrap();
    assert_close(&out.read(cuda), &expected, tolerance::<T>(), name);

    reference::binary(cpu(), Binary::Add, &x, &bias, &mut expected).unwrap();
    let (mut out, bias) = (Output::<T>::holding(cuda, &x), put::<f32>(cuda, &bias));
    out.write(|x| add_bias(cuda, x, bias.view())).unwrap();
    assert_close(&out.read(cuda), &expected, tolerance::<T>(), name);

    reference::scale(cpu(), &x, 0.3, -0.1, &mut expected).unwrap();
    let (mut out, input) = (Output::<T>::new(cuda, x.len()), put::<T>(cuda, &x));
    out.write(|out| scale(cuda, input.view(), 0.3, -0.1, out)).unwrap();
    assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(1e-7, 1e-6), name);

    let (from, to) = (Columns { width, start: 5 }, Columns { width: 20, start: 3 });
    let old = rounded::<T>(&rng.vec(rows * to.width));
    let mut expected = old.clone();
    reference::copy_columns(&x, from, 11, &mut expected, to).unwrap();
    let mut out = Output::<T>::holding(cuda, &old);
    out.write(|out| copy_columns(cuda, input.view(), from, 11, out, to)).unwrap();
    assert_close(&out.read(cuda), &expected, Tolerance { absolute: 0.0, relative: 0.0 }, name);
}

fn check_clamp<T: Element + Default>(cuda: &Cuda, name: &str) {
    let x = rounded::<T>(&Rng::new(5).wild(1003));
    let mut expected = x.clone();
    reference::clamp_in_place(cpu(), &mut expected, -0.5, 0.25);
    let mut out = Output::<T>::holding(cuda, &x);
    out.write(|x| clamp_in_place(cuda, x, -0.5, 0.25)).unwrap();
    assert_close(&out.read(cuda), &expected, Tolerance { absolute: 0.0, relative: 0.0 }, name);
}

#[test]
fn unary_functions_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_unary);
}

#[test]
fn binary_functions_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_binary);
}

#[test]
fn gated_activations_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_gated);
}

#[test]
fn per_row_operations_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_rows);
}

#[test]
fn clamping_keeps_nan() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_clamp);
}

#[test]
fn conversion_rounds_to_nearest_even() {
    let Some(cuda) = gpu() else { return };
    let x = Rng::new(6).wild(10_007);
    let (input, mut narrow) = (put::<f32>(cuda, &x), Output::<half::bf16>::new(cuda, x.len()));
    narrow.write(|out| to_bf16(cuda, input.view(), out)).unwrap();
    let expected = rounded::<half::bf16>(&x);
    let exact = Tolerance { absolute: 0.0, relative: 0.0 };
    assert_close(&narrow.read(cuda), &expected, exact, "to bf16");
    let (input, mut wide) = (put::<half::bf16>(cuda, &x), Output::<f32>::new(cuda, x.len()));
    wide.write(|out| to_f32(cuda, input.view(), out)).unwrap();
    assert_close(&wide.read(cuda), &expected, exact, "to f32");
}
