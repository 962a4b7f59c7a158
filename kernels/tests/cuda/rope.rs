use metrale_kernels::cpu::rope as reference;
use metrale_kernels::cuda::rope::{Pairing, Tables, TablesMut, fill_sectioned_tables, fill_tables, rotate};
use metrale_kernels::cuda::{Cuda, Element, Indices};

use crate::support::{Output, Rng, Tolerance, assert_close, cpu, for_elements, gpu, put, rounded};

fn inv_freq(half: usize) -> Vec<f32> {
    (0..half).map(|j| 10_000f32.powf(-(j as f32) / half as f32)).collect()
}

#[test]
fn tables_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    let half = 32;
    let frequencies = put::<f32>(cuda, &inv_freq(half));
    let positions: Vec<u32> = [0, 1, 7, 100, 4095, 131_071].repeat(3);
    for sections in [None, Some([11, 11, 10])] {
        let streams = if sections.is_some() { 3 } else { 1 };
        let rows = positions.len() / streams;
        let (mut cos, mut sin) = (vec![0.0; rows * half], vec![0.0; rows * half]);
        let host = reference::TablesMut { cos: &mut cos, sin: &mut sin };
        let mut indices = Indices::new(cuda, positions.len()).unwrap();
        indices.set(cuda, &positions, 1 << 20).unwrap();
        let (mut device_cos, mut device_sin) =
            (Output::<f32>::new(cuda, rows * half), Output::<f32>::new(cuda, rows * half));
        device_cos
            .write(|cos| {
                device_sin.write(|sin| {
                    let mut tables = TablesMut { cos: cos.reborrow(), sin: sin.reborrow() };
                    match sections {
                        None => {
                            reference::fill_tables(&inv_freq(half), &positions, 1.5, host).unwrap();
                            fill_tables(cuda, frequencies.view(), &indices, 1.5, &mut tables)
                        }
                        Some(s) => {
                            reference::fill_sectioned_tables(&inv_freq(half), &positions, s, 1.5, host)
                                .unwrap();
                            fill_sectioned_tables(cuda, frequencies.view(), &indices, s, 1.5, &mut tables)
                        }
                    }
                })
            })
            .unwrap();
        let tolerance = Tolerance { absolute: 1e-6, relative: 0.0 };
        assert_close(&device_cos.read(cuda), &cos, tolerance, "cos");
        assert_close(&device_sin.read(cuda), &sin, tolerance, "sin");
    }
}

fn check_rotate<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(1);
    for (rows, heads, head_dim, rotary_dim) in
        [(1, 1, 2, 2), (5, 3, 64, 64), (7, 9, 128, 32), (300, 2, 80, 0)]
    {
        let half = rotary_dim / 2;
        let (cos, sin) = (rng.vec(rows * half), rng.vec(rows * half));
        let x = rounded::<T>(&rng.hard(rows * heads * head_dim));
        let (device_cos, device_sin) = (put::<f32>(cuda, &cos), put::<f32>(cuda, &sin));
        for pairing in [Pairing::HalfSplit, Pairing::Interleaved] {
            let mut expected = x.clone();
            let tables = reference::Tables { cos: &cos, sin: &sin, rotary_dim };
            reference::rotate(cpu(), &mut expected, heads, head_dim, tables, pairing).unwrap();
            let tables = Tables {
                cos: device_cos.view().range(0..cos.len()).unwrap(),
                sin: device_sin.view().range(0..sin.len()).unwrap(),
                rotary_dim,
            };
            let mut out = Output::<T>::holding(cuda, &x);
            out.write(|x| rotate(cuda, x, heads, head_dim, tables, pairing)).unwrap();
            let what = format!("{name} {heads} x {head_dim}, {rotary_dim}, {pairing:?}");
            assert_close(&out.read(cuda), &expected, Tolerance::of::<T>(2e-4, 1e-6), &what);
        }
    }
}

#[test]
fn rotation_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check_rotate);
}
