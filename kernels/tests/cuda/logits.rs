use metrale_kernels::cpu::logits as reference;
use metrale_kernels::cuda::logits::{argmax, log_softmax_at, top_k};
use metrale_kernels::cuda::{Buffer, Indices};

use crate::support::{Output, Rng, Tolerance, assert_close, cpu, gpu, put};

const WIDTHS: [usize; 8] = [1, 5, 31, 1000, 1025, 8192, 8200, 151_936];

/// Rows with ties, with a NaN, with infinities, and of one value.
fn rows(rng: &mut Rng, width: usize) -> Vec<f32> {
    let plain = rng.vec(width);
    let ties: Vec<f32> = (0..width).map(|_| rng.below(7) as f32 - 3.0).collect();
    let zeros: Vec<f32> = (0..width).map(|_| [0.0, -0.0][rng.below(2)]).collect();
    let nan: Vec<f32> = (0..width).map(|i| if i % 3 == 0 { f32::NAN } else { rng.unit() }).collect();
    let infinite: Vec<f32> =
        (0..width).map(|i| if i % 2 == 0 { f32::NEG_INFINITY } else { rng.unit() }).collect();
    [plain, ties, zeros, nan, infinite, vec![f32::NEG_INFINITY; width]].concat()
}

#[test]
fn argmax_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    let mut rng = Rng::new(1);
    for width in WIDTHS {
        let x = rows(&mut rng, width);
        let mut expected = vec![0; x.len() / width];
        reference::argmax(cpu(), &x, width, &mut expected).unwrap();
        let (logits, mut out) = (put::<f32>(cuda, &x), Indices::new(cuda, expected.len()).unwrap());
        argmax(cuda, logits.view(), width, &mut out).unwrap();
        assert_eq!(out.to_vec(cuda).unwrap(), expected, "{width}");
        assert_eq!(out.limit(), width);
    }
}

#[test]
fn top_k_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    let mut rng = Rng::new(2);
    for width in WIDTHS {
        let x = rows(&mut rng, width);
        let logits = put::<f32>(cuda, &x);
        let num_rows = x.len() / width;
        for k in [1, 2, 7, 50, 1000, 1024].into_iter().filter(|&k| k <= width) {
            let mut ids: Buffer<u32> = Buffer::zeroed(cuda, num_rows * k).unwrap();
            let mut values = Output::<f32>::new(cuda, num_rows * k);
            values.write(|v| top_k(cuda, logits.view(), width, k, &mut ids.view_mut(), v)).unwrap();
            let (ids, values) = (ids.view().to_vec(cuda).unwrap(), values.read(cuda));
            for (row, x) in x.chunks(width).enumerate() {
                let (expected_ids, expected): (Vec<u32>, Vec<f32>) =
                    reference::top_k(cpu(), x, k).into_iter().unzip();
                let what = format!("row {row} of {width}, k = {k}");
                assert_eq!(ids[row * k..][..k], expected_ids, "{what}");
                let exact = Tolerance { absolute: 0.0, relative: 0.0 };
                assert_close(&values[row * k..][..k], &expected, exact, &what);
            }
        }
    }
}

#[test]
fn log_softmax_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    let mut rng = Rng::new(3);
    for width in WIDTHS {
        let mut x: Vec<f32> = rng.hard(4 * width).iter().map(|v| v * 0.1).collect();
        x.extend((0..width).map(|i| if i % 2 == 1 { f32::NEG_INFINITY } else { 1.0 }));
        let picks: Vec<(usize, u32)> = (0..40).map(|_| (rng.below(5), rng.below(width) as u32)).collect();
        let mut expected = vec![0.0; picks.len()];
        reference::log_softmax_at(cpu(), &x, width, &picks, &mut expected).unwrap();
        let (logits, mut out) = (put::<f32>(cuda, &x), Output::<f32>::new(cuda, picks.len()));
        let (mut at, mut ids) =
            (Indices::new(cuda, picks.len()).unwrap(), Indices::new(cuda, picks.len()).unwrap());
        let rows: Vec<u32> = picks.iter().map(|p| p.0 as u32).collect();
        at.set(cuda, &rows, 5).unwrap();
        ids.set(cuda, &picks.iter().map(|p| p.1).collect::<Vec<_>>(), width).unwrap();
        out.write(|out| log_softmax_at(cuda, logits.view(), width, &at, &ids, out)).unwrap();
        let tolerance = Tolerance { absolute: 1e-5, relative: 1e-5 };
        assert_close(&out.read(cuda), &expected, tolerance, &format!("{width}"));
    }
}
