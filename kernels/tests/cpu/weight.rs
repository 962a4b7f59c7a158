//! Weights keep the checkpoint's values and size.

use std::sync::Arc;

use metrale_kernels::cpu::{Bytes, Cpu, Format, ThreadPool, Weight, embedding};

use crate::quantized;
use crate::support::{Rng, assert_close, cpus, poisoned};

fn columns(format: Format) -> Vec<usize> {
    let block = format.block_len();
    if block == 1 { vec![1, 7, 33, 96] } else { vec![block, 3 * block] }
}

#[test]
fn rows_read_back_as_the_checkpoint_says() {
    let mut rng = Rng::new(1);
    for format in Format::ALL {
        for num_cols in columns(format) {
            for num_rows in [1, 15, 16, 37] {
                let bytes = quantized::random(format, &mut rng, num_rows, num_cols);
                let expected = quantized::matrix(format, &bytes, num_cols);
                let weight = Weight::from_vec(format, num_rows, num_cols, bytes).unwrap();
                for row in 0..num_rows {
                    let mut out = poisoned(num_cols);
                    weight.dequantize_row(row, &mut out).unwrap();
                    let expected = &expected[row * num_cols..][..num_cols];
                    assert_close(
                        &out,
                        expected,
                        |i| 2e-7 * (expected[i].abs() + 1.0),
                        &format!("{format:?}"),
                    );
                }
            }
        }
    }
}

#[test]
fn gathered_rows_equal_single_rows_of_a_slice() {
    let mut rng = Rng::new(2);
    for cpu in cpus(&[1, 3]) {
        for format in Format::ALL {
            let num_cols = 2 * format.block_len().max(16);
            let bytes = quantized::random(format, &mut rng, 50, num_cols);
            let weight = Weight::from_vec(format, 50, num_cols, bytes).unwrap();
            let slice = weight.slice_rows(5..47).unwrap();
            let ids: Vec<u32> = (0..33).map(|_| rng.below(42) as u32).collect();
            let mut out = poisoned(ids.len() * num_cols);
            embedding::gather(&cpu, &slice, &ids, &mut out).unwrap();
            for (row, &id) in out.chunks_exact(num_cols).zip(&ids) {
                let mut expected = poisoned(num_cols);
                weight.dequantize_row(5 + id as usize, &mut expected).unwrap();
                assert_eq!(row, expected);
            }
        }
    }
}

#[test]
fn packing_costs_at_most_three_per_cent() {
    let mut rng = Rng::new(3);
    for format in Format::ALL {
        let bytes = quantized::random(format, &mut rng, 64, 512);
        let size = bytes.len();
        let weight = Weight::from_vec(format, 64, 512, bytes).unwrap();
        assert!(weight.num_bytes_read() >= size && weight.num_bytes_read() * 100 <= size * 103, "{format:?}");
        assert_eq!(weight.slice_rows(16..48).unwrap().num_bytes_read() * 2, weight.num_bytes_read());
    }
}

#[test]
fn impossible_weights_are_errors() {
    let bytes: Bytes = Arc::new(vec![0u8; 1000]);
    let wrong = |format, rows, cols, range| {
        assert!(Weight::new(&ThreadPool::new(1), format, rows, cols, &bytes, range).is_err());
    };
    wrong(Format::Q4_0, 1, 33, 0..18);
    wrong(Format::Q4_K, 1, 128, 0..72);
    wrong(Format::Q4_0, 1, 32, 0..19);
    wrong(Format::F32, 1, 4, 990..1006);
    wrong(Format::F32, usize::MAX, 4, 0..16);
    wrong(Format::F32, 0, 0, 0..0);
    let weight = Weight::new(&ThreadPool::new(1), Format::F32, 2, 4, &bytes, 1..33).unwrap();
    assert!(weight.slice_rows(1..3).is_err());
    assert!(weight.dequantize_row(2, &mut [0.0; 4]).is_err());
    assert!(weight.dequantize_row(0, &mut [0.0; 3]).is_err());
    assert!(embedding::gather(&Cpu::new(1), &weight, &[2], &mut [0.0; 4]).is_err());
}
