//! GGUF files: what is read, and what every kind of damage is called.

#![allow(clippy::unwrap_used)]

use metrale_graph::checkpoint::gguf::{self, Array, Value};
use metrale_graph::checkpoint::write::{self, Tensor};
use metrale_graph::checkpoint::{CheckpointError, Dtype, Headers};

const SAMPLE: &[u8] = include_bytes!("data/gguf/sample.gguf");

/// Bytes of the magic number, the version and the two counts.
const FIXED: usize = 24;

fn sample() -> Headers {
    Headers::from_gguf(gguf::parse(SAMPLE).unwrap()).unwrap()
}

/// The sample with `bytes` at `at`.
fn patched(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = SAMPLE.to_vec();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

/// Where `text` ends in the sample.
fn after(text: &str) -> usize {
    SAMPLE.windows(text.len()).position(|w| w == text.as_bytes()).unwrap() + text.len()
}

fn error(file: &[u8]) -> CheckpointError {
    gguf::parse(file).unwrap_err()
}

/// A file with one tensor of one byte, whose table entry `edit` may change: name, dims, type, offset.
fn one_tensor(dims: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut file = write::gguf(&[], &[]).unwrap()[..FIXED].to_vec();
    file[8] = 1;
    file.extend(1u64.to_le_bytes());
    file.push(b'w');
    file.extend((dims.len() as u32).to_le_bytes());
    file.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
    file.extend(type_id.to_le_bytes());
    file.extend(offset.to_le_bytes());
    file.resize(file.len().next_multiple_of(32) + 64, 0);
    file
}

#[test]
fn a_file_of_another_writer_is_read() {
    let headers = sample();
    let names: Vec<_> = headers.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["output_norm.weight", "token_embd.weight", "blk.0.attn_q.weight"]);
    let embedding = headers.get("token_embd.weight").unwrap();
    assert_eq!((embedding.dtype, embedding.shape.as_slice()), (Dtype::F16, [3, 8].as_slice()));
    assert_eq!(SAMPLE[embedding.offset as usize + 2..][..2], [0x00, 0x3c]);
    let q = headers.get("blk.0.attn_q.weight").unwrap();
    assert_eq!((q.dtype, q.shape.as_slice(), q.num_bytes), (Dtype::Q8_0, [3, 64].as_slice(), 204));
}

#[test]
fn metadata_is_typed_and_keeps_its_order() {
    let headers = sample();
    let metadata = headers.gguf().unwrap();
    assert_eq!(metadata.architecture().unwrap(), "llama");
    assert_eq!(metadata.required::<usize>("llama.block_count").unwrap(), 2);
    assert_eq!(metadata.required::<f32>("llama.attention.layer_norm_rms_epsilon").unwrap(), 1e-5);
    assert_eq!(metadata.required::<u64>("t.u64").unwrap(), (1 << 63) + 1);
    assert_eq!(metadata.required::<i64>("t.i8").unwrap(), -100);
    assert_eq!(metadata.required::<f64>("t.f64").unwrap(), 0.1);
    assert!(metadata.required::<bool>("t.bool").unwrap());
    assert_eq!(metadata.required::<&[String]>("tokenizer.ggml.tokens").unwrap()[1], "▁the");
    assert_eq!(metadata.required::<Vec<i64>>("llama.attention.head_count_kv").unwrap(), [2, 4]);
    assert_eq!(metadata.optional::<u32>("llama.expert_count").unwrap(), None);
    assert_eq!(metadata.iter().next().unwrap().0, "general.architecture");
}

#[test]
fn wrong_metadata_is_an_error_that_names_the_key() {
    let headers = sample();
    let metadata = headers.gguf().unwrap();
    let missing = metadata.required::<u32>("llama.expert_count").unwrap_err();
    assert_eq!(missing.to_string(), "the GGUF metadata has no key `llama.expert_count`");
    let text = metadata.optional::<u32>("general.architecture").unwrap_err();
    assert_eq!(
        text.to_string(),
        "GGUF metadata `general.architecture` is string, expected an integer from 0 to 4294967295"
    );
    assert!(metadata.required::<u64>("t.i8").is_err(), "negative");
    assert!(metadata.required::<i64>("t.u64").is_err(), "too large");
}

#[test]
fn json_keeps_small_values_and_elides_vocabularies() {
    let tokens = Value::Array(Array::String(vec!["x".into(); 2000]));
    let layers = Value::Array(Array::U32(vec![1, 2]));
    let entries = [("z", Value::F32(f32::NAN)), ("tokens", tokens), ("layers", layers)];
    let parsed = gguf::parse(&write::gguf(&entries, &[]).unwrap()).unwrap();
    let json = serde_json::to_string(&parsed.metadata.to_json()).unwrap();
    assert_eq!(json, r#"{"z":null,"tokens":{"elided":"string","length":2000},"layers":[1,2]}"#);
}

#[test]
fn what_is_written_is_read_back() {
    let nested = Array::Array(vec![Array::I16(vec![-1]), Array::Bool(vec![true, false])]);
    let entries = [("a", Value::Array(nested)), ("b", Value::I64(-7))];
    let tensors = [
        Tensor { name: "w", dtype: Dtype::Q4K, shape: &[2, 256], bytes: &[7; 288] },
        Tensor { name: "experts", dtype: Dtype::BF16, shape: &[2, 3, 4], bytes: &[8; 48] },
        Tensor { name: "scalar", dtype: Dtype::F32, shape: &[], bytes: &[9; 4] },
    ];
    let bytes = write::gguf(&entries, &tensors).unwrap();
    let file = gguf::parse(&bytes).unwrap();
    for (key, value) in &entries {
        assert_eq!(file.metadata.get(key), Some(value));
    }
    for (tensor, found) in tensors.iter().zip(&file.tensors) {
        assert_eq!((found.dtype, found.shape.as_slice()), (tensor.dtype, tensor.shape));
        assert_eq!(&bytes[found.offset as usize..][..tensor.bytes.len()], tensor.bytes);
    }
}

#[test]
fn other_files_and_versions_are_refused_with_a_reason() {
    assert!(matches!(error(b"PK\x03\x04 and more"), CheckpointError::Magic { .. }));
    assert!(matches!(error(b"GG"), CheckpointError::Truncated { .. }));
    assert_eq!(gguf::parse(&patched(4, &[2])).unwrap().version, 2);
    assert!(error(&patched(4, &[1])).to_string().contains("convert the model again"));
    assert!(error(&patched(4, &[0, 0, 0, 3])).to_string().contains("big endian"));
    assert!(matches!(error(&patched(4, &[9])), CheckpointError::Version { found: 9, hint: "" }));
}

#[test]
fn huge_counts_fail_before_anything_is_allocated() {
    for (at, what) in [(8, "the tensor table"), (16, "the metadata")] {
        let error = error(&patched(at, &[0xff; 8]));
        assert!(
            matches!(&error, CheckpointError::Count { what: w, found: u64::MAX, .. } if w == what),
            "{error}"
        );
    }
    let tokens = error(&patched(after("tokenizer.ggml.tokens") + 8, &[0xff; 8]));
    assert!(tokens.to_string().starts_with("the array `tokenizer.ggml.tokens` at byte"), "{tokens}");
    let string = error(&patched(after("general.architecture") + 4, &[0xff; 8]));
    assert!(matches!(string, CheckpointError::Truncated { needed: u64::MAX, .. }), "{string}");
}

#[test]
fn damaged_metadata_is_named() {
    let invalid = error(&patched(after("general.architecture") + 12, &[0xff]));
    assert!(
        matches!(&invalid, CheckpointError::NotUtf8 { what, .. } if what.contains("general.architecture"))
    );
    assert!(matches!(error(&patched(after("t.u8"), &[13])), CheckpointError::ValueType { found: 13, .. }));
    assert!(matches!(error(&patched(after("t.bool") + 4, &[2])), CheckpointError::Boolean { found: 2, .. }));
    let duplicate = error(&patched(after("t.u8") - 2, b"i8"));
    assert!(matches!(&duplicate, CheckpointError::Duplicate { name, .. } if name == "t.i8"), "{duplicate}");
    for found in [0, 3, 1 << 40] {
        let file = write::gguf(&[("general.alignment", Value::U64(found))], &[]).unwrap();
        assert_eq!(error(&file), CheckpointError::Alignment { found });
    }
}

#[test]
fn arrays_cannot_be_nested_without_end() {
    let mut array = Array::U8(vec![1]);
    for _ in 0..50 {
        array = Array::Array(vec![array]);
    }
    let file = write::gguf(&[("deep", Value::Array(array))], &[]).unwrap();
    assert!(matches!(error(&file), CheckpointError::ValueType { found: 9, .. }));
}

#[test]
fn bad_tensors_are_named() {
    gguf::parse(&one_tensor(&[8], 0, 0)).unwrap();
    assert!(matches!(error(&one_tensor(&[8], 0, 16)), CheckpointError::Unaligned { found: 16, .. }));
    assert!(matches!(error(&one_tensor(&[8], 0, 64)), CheckpointError::OutOfRange { begin: 64, .. }));
    let far = error(&one_tensor(&[8], 0, u64::MAX - 31));
    assert!(matches!(far, CheckpointError::OutOfRange { .. }), "{far}");
    assert!(matches!(error(&one_tensor(&[u64::MAX, 8], 0, 0)), CheckpointError::Shape { .. }));
    assert!(
        matches!(error(&one_tensor(&[33], 2, 0)), CheckpointError::Shape { .. }),
        "no whole number of blocks"
    );
    assert!(matches!(error(&one_tensor(&[1; 5], 0, 0)), CheckpointError::Count { found: 5, limit: 4, .. }));
    let unknown = error(&one_tensor(&[8], 77, 0));
    assert_eq!(unknown, CheckpointError::UnknownDtype { tensor: "w".into(), found: "ggml type 77".into() });
}

#[test]
fn overlapping_and_doubled_tensors_are_named() {
    let second = after("token_embd.weight") + 4 + 16 + 4;
    let overlap = error(&patched(second, &[0; 8]));
    assert!(matches!(overlap, CheckpointError::Overlap { at: 0, .. }), "{overlap}");
    let tensor = Tensor { name: "w", dtype: Dtype::F32, shape: &[1], bytes: &[0; 4] };
    let doubled = gguf::parse(&write::gguf(&[], &[tensor, tensor]).unwrap()).unwrap();
    let error = Headers::from_gguf(doubled).unwrap_err();
    assert_eq!(error, CheckpointError::Duplicate { what: "tensor", name: "w".into() });
}

#[test]
fn every_truncation_is_an_error() {
    let end = sample().iter().map(|t| t.offset + t.num_bytes).max().unwrap() as usize;
    for length in 0..end {
        gguf::parse(&SAMPLE[..length]).unwrap_err();
    }
    gguf::parse(&SAMPLE[..end]).unwrap();
}
