//! Block types mean what the reference implementation of GGUF says; damaged values are found.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use metrale_graph::checkpoint::dequant::{dequantize, is_convertible};
use metrale_graph::checkpoint::{CheckpointError, Dtype, TensorInfo, check_finite};

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf").join(name)).unwrap()
}

fn f32_bits(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b)).collect()
}

fn convert(dtype: Dtype, bytes: &[u8], n: usize) -> Vec<f32> {
    let mut out = vec![0.0; n];
    dequantize(dtype, bytes, &mut out).unwrap();
    out
}

fn info(dtype: Dtype) -> TensorInfo {
    TensorInfo { name: "w".into(), dtype, shape: vec![], file: 0, offset: 0, num_bytes: 0 }
}

#[test]
fn block_types_are_bit_equal_to_gguf_py() {
    let types = [
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q8_0,
        Dtype::Q2K,
        Dtype::Q3K,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
    ];
    for dtype in types {
        let name = dtype.name().to_lowercase();
        let expected = f32_bits(&fixture(&format!("{name}.f32")));
        let found = convert(dtype, &fixture(&format!("{name}.blocks")), expected.len());
        let found: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
        assert_eq!(found, expected, "{dtype}");
    }
}

#[test]
fn fp8_values_are_equal_to_ml_dtypes() {
    let every_byte: Vec<u8> = (0..=255).collect();
    for (dtype, name) in [(Dtype::F8E4M3, "float8_e4m3fn.f32"), (Dtype::F8E5M2, "float8_e5m2.f32")] {
        for (i, (x, bits)) in
            convert(dtype, &every_byte, 256).into_iter().zip(f32_bits(&fixture(name))).enumerate()
        {
            let expected = f32::from_bits(bits);
            assert!(
                x.to_bits() == bits || x.is_nan() && expected.is_nan(),
                "{dtype} {i}: {x} for {expected}"
            );
        }
    }
}

#[test]
fn plain_floats_keep_their_value() {
    assert_eq!(convert(Dtype::BF16, &[0x80, 0x3f, 0x20, 0xc0], 2), [1.0, -2.5]);
    assert_eq!(convert(Dtype::F16, &[0x00, 0x3c, 0x01, 0x00], 2), [1.0, 2f32.powi(-24)]);
    assert_eq!(convert(Dtype::F32, &1.5f32.to_le_bytes(), 1), [1.5]);
    assert_eq!(convert(Dtype::F64, &(-0.25f64).to_le_bytes(), 1), [-0.25]);
}

#[test]
fn wrong_lengths_and_types_without_a_meaning_are_errors() {
    let mut out = [0.0; 32];
    let wrong_length = dequantize(Dtype::Q4_0, &[0; 17], &mut out).unwrap_err();
    assert_eq!(wrong_length, CheckpointError::BlockCount { dtype: Dtype::Q4_0, bytes: 17, elements: 32 });
    assert!(dequantize(Dtype::Q4K, &[0; 18], &mut out).is_err());
    let unsupported = dequantize(Dtype::IQ4NL, &[0; 18], &mut out).unwrap_err();
    assert_eq!(unsupported, CheckpointError::NotConvertible { dtype: Dtype::IQ4NL });
    assert!(!is_convertible(Dtype::I32) && is_convertible(Dtype::Q6K));
}

#[test]
fn the_first_nan_or_infinity_is_named() {
    for at in [0, 1, 2047, 2048, 4999] {
        let mut bytes = vec![0x3f; 10_000];
        bytes[2 * at..2 * at + 2].copy_from_slice(&[0xc0, 0x7f]);
        bytes[9998..].copy_from_slice(&[0x80, 0xff]);
        let error = check_finite(&info(Dtype::BF16), &bytes).unwrap_err();
        let value = if at == 4999 { "-inf" } else { "NaN" };
        assert_eq!(error, CheckpointError::NotFinite { tensor: "w".into(), index: at, value });
    }
    let f32s: Vec<u8> = [1.0, f32::NEG_INFINITY].iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
    let error = check_finite(&info(Dtype::F32), &f32s).unwrap_err();
    assert!(error.to_string().contains("tensor `w` holds -inf at element 1"), "{error}");
    assert!(check_finite(&info(Dtype::F16), &[0, 0x3c, 0, 0x7c]).is_err());
    assert!(check_finite(&info(Dtype::F8E4M3), &[0x7e, 0xff]).is_err());
    assert!(check_finite(&info(Dtype::F8E5M2), &[0x7b, 0x7c]).is_err());
}

#[test]
fn a_nan_scale_is_found_in_every_block_type() {
    for (dtype, at) in
        [(Dtype::Q8_0, 0), (Dtype::Q4_1, 2), (Dtype::Q4K, 2), (Dtype::Q6K, 208), (Dtype::Q3K, 108)]
    {
        let mut bytes = vec![0x11; 2 * dtype.block_bytes()];
        check_finite(&info(dtype), &bytes).unwrap();
        let scale = dtype.block_bytes() + at;
        bytes[scale..scale + 2].copy_from_slice(&[0x00, 0x7e]);
        let error = check_finite(&info(dtype), &bytes).unwrap_err();
        let index = dtype.block_size();
        assert_eq!(error, CheckpointError::NotFinite { tensor: "w".into(), index, value: "NaN" });
    }
}

#[test]
fn integers_are_never_called_damaged() {
    for dtype in [Dtype::U8, Dtype::I64, Dtype::Bool, Dtype::F4, Dtype::IQ4XS] {
        check_finite(&info(dtype), &[0xff; 272]).unwrap();
    }
}
