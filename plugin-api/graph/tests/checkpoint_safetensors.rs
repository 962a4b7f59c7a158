//! Safetensors files: what is read, and what every kind of damage is called.

#![allow(clippy::unwrap_used)]

use metrale_graph::checkpoint::index::Index;
use metrale_graph::checkpoint::write::{self, Tensor};
use metrale_graph::checkpoint::{CheckpointError, Dtype, Headers, Metadata, safetensors};

/// A file with this header and this many data bytes.
fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

fn error(header: &str, data_bytes: usize) -> CheckpointError {
    safetensors::parse(&file(header, data_bytes)).unwrap_err()
}

fn shard(names: &[&str]) -> safetensors::File {
    let tensors: Vec<_> =
        names.iter().map(|name| Tensor { name, dtype: Dtype::U8, shape: &[1], bytes: &[0] }).collect();
    safetensors::parse(&write::safetensors(&tensors, &[]).unwrap()).unwrap()
}

#[test]
fn what_is_written_is_read_back() {
    let tensors = [
        Tensor { name: "b", dtype: Dtype::F32, shape: &[2, 3], bytes: &[1; 24] },
        Tensor { name: "a", dtype: Dtype::BF16, shape: &[], bytes: &[2, 3] },
        Tensor { name: "scale", dtype: Dtype::F8E4M3, shape: &[0, 7], bytes: &[] },
        Tensor { name: "packed", dtype: Dtype::F4, shape: &[3, 2], bytes: &[4; 3] },
    ];
    let bytes = write::safetensors(&tensors, &[("format", "pt")]).unwrap();
    let headers = Headers::from_safetensors(vec![("x".into(), safetensors::parse(&bytes).unwrap())]).unwrap();
    assert_eq!(headers.len(), 4);
    for tensor in tensors {
        let found = headers.get(tensor.name).unwrap();
        assert_eq!((found.dtype, found.shape.as_slice()), (tensor.dtype, tensor.shape));
        let begin = found.offset as usize;
        assert_eq!(&bytes[begin..begin + found.num_bytes as usize], tensor.bytes);
    }
    assert!(matches!(headers.metadata(), Metadata::Safetensors(m) if m["format"] == "pt"));
    assert_eq!(headers.num_bytes(), 29);
}

#[test]
fn every_type_of_the_reference_library_is_known() {
    for &dtype in Dtype::ALL.iter().filter(|d| d.in_safetensors()) {
        let tensor = Tensor {
            name: "t",
            dtype,
            shape: &[4],
            bytes: &vec![0; dtype.num_bytes(&[4]).unwrap() as usize],
        };
        let parsed = safetensors::parse(&write::safetensors(&[tensor], &[]).unwrap()).unwrap();
        assert_eq!(parsed.tensors[0].dtype, dtype);
    }
}

#[test]
fn truncation_and_oversized_headers_are_named() {
    assert!(matches!(
        safetensors::parse(&[1, 2]),
        Err(CheckpointError::Truncated { needed: 8, file_bytes: 2, .. })
    ));
    let oversized = safetensors::parse(&[0xff; 16]).unwrap_err();
    assert!(matches!(oversized, CheckpointError::HeaderTooLarge { found: u64::MAX, .. }), "{oversized}");
    let header = r#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    let whole = file(header, 16);
    safetensors::parse(&whole).unwrap();
    assert!(matches!(safetensors::parse(&whole[..20]), Err(CheckpointError::Truncated { .. })));
    let text = safetensors::parse(&whole[..whole.len() - 1]).unwrap_err().to_string();
    assert_eq!(text, "tensor `w` lies at bytes 0..16 of 15: the file is truncated or the offset is wrong");
}

#[test]
fn overlaps_and_holes_are_named() {
    let header = |second: &str| {
        let first = r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
        format!(r#"{{{first},"b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#)
    };
    let overlap = error(&header("[2,6]"), 6);
    assert_eq!(overlap, CheckpointError::Overlap { first: "a".into(), second: "b".into(), at: 2 });
    assert_eq!(error(&header("[5,9]"), 9), CheckpointError::Hole { at: 4, bytes: 1 });
    assert_eq!(error(&header("[4,8]"), 11), CheckpointError::Hole { at: 8, bytes: 3 });
    let outside = error(&header("[18446744073709551611,18446744073709551615]"), 8);
    assert!(matches!(outside, CheckpointError::OutOfRange { .. }), "{outside}");
    assert!(matches!(error(&header("[8,4]"), 8), CheckpointError::Size { .. }));
}

#[test]
fn sizes_shapes_types_and_names_are_checked() {
    let size = error(r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,8]}}"#, 8).to_string();
    assert_eq!(size, "tensor `w` [2, 2] F32 needs 16 bytes, the header gives it 8");
    let shape = error(r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#, 8);
    assert!(matches!(shape, CheckpointError::Shape { .. }), "{shape}");
    let unknown = error(r#"{"w":{"dtype":"F3","shape":[1],"data_offsets":[0,1]}}"#, 1);
    assert_eq!(unknown, CheckpointError::UnknownDtype { tensor: "w".into(), found: "F3".into() });
    let entry = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let duplicate = error(&format!(r#"{{"w":{entry},"w":{entry}}}"#), 0);
    assert_eq!(duplicate, CheckpointError::Duplicate { what: "tensor", name: "w".into() });
    let incomplete = error(r#"{"w":{"dtype":"U8","shape":[0]}}"#, 0).to_string();
    assert!(incomplete.contains("tensor `w`: missing field `data_offsets`"), "{incomplete}");
    assert!(matches!(error("[]", 0), CheckpointError::Json { .. }));
}

#[test]
fn a_tensor_in_two_shards_is_an_error() {
    let files = vec![("one".into(), shard(&["a", "b"])), ("two".into(), shard(&["b"]))];
    let error = Headers::from_safetensors(files).unwrap_err();
    let (first, second) = ("one".into(), "two".into());
    assert_eq!(error, CheckpointError::InTwoFiles { name: "b".into(), first, second });
}

#[test]
fn the_index_and_its_shards_must_agree() {
    let index =
        Index::parse(br#"{"metadata":{"total_size":3},"weight_map":{"a":"1","b":"2","c":"2"}}"#).unwrap();
    assert_eq!(index.files(), ["1", "2"]);
    let files = ["1".to_owned(), "2".to_owned()];
    let check = |first: &[&str], second: &[&str]| {
        let shards = vec![("1".into(), shard(first)), ("2".into(), shard(second))];
        index.check(&Headers::from_safetensors(shards).unwrap(), &files)
    };
    check(&["a"], &["b", "c", "extra"]).unwrap();
    let problems = check(&["a", "b"], &[]).unwrap_err().to_string();
    assert!(problems.contains("`b` should be in 2 and is in 1"), "{problems}");
    assert!(problems.contains("`c` should be in 2 and is in no shard"), "{problems}");
}

#[test]
fn an_index_cannot_leave_its_directory() {
    for name in ["../../etc/passwd", "/etc/passwd", "a/b", "", ".."] {
        let json = serde_json::json!({ "weight_map": { "w": name } }).to_string();
        assert_eq!(Index::parse(json.as_bytes()), Err(CheckpointError::ShardName { name: name.into() }));
    }
    assert!(Index::parse(b"{}").is_err() && Index::parse(br#"{"weight_map":{}}"#).is_err());
}

#[test]
fn the_nearest_names_are_what_a_person_meant() {
    let layer =
        |i: usize| ["b", "a", "qkv"].map(|p| format!("model.layers.{i}.linear_attn.in_proj_{p}.weight"));
    let names: Vec<String> = (0..3000).flat_map(layer).chain(["lm_head.weight".into()]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let headers = Headers::from_safetensors(vec![("x".into(), shard(&names))]).unwrap();
    let nearest = |name| headers.nearest(name, 2).into_iter().map(|t| t.name.as_str()).collect::<Vec<_>>();
    assert_eq!(
        nearest("model.layers.3.linear_attn.in_proj_ba.weight"),
        ["model.layers.3.linear_attn.in_proj_a.weight", "model.layers.3.linear_attn.in_proj_b.weight"]
    );
    let scoped = nearest("model.language_model.model.layers.7.linear_attn.in_proj_b.weight");
    assert_eq!(scoped[0], "model.layers.7.linear_attn.in_proj_b.weight");
    assert_eq!(nearest("model.lm_head.weight")[0], "lm_head.weight");
    assert_eq!(headers.with_prefix("model.layers.2999.").count(), 3);
}

#[test]
fn types_that_a_format_does_not_have_cannot_be_written() {
    let q4 = Tensor { name: "w", dtype: Dtype::Q4_0, shape: &[32], bytes: &[0; 18] };
    assert!(write::safetensors(&[q4], &[]).unwrap_err().to_string().contains("safetensors has no type Q4_0"));
    let fp8 = Tensor { name: "w", dtype: Dtype::F8E4M3, shape: &[1], bytes: &[0] };
    assert!(write::gguf(&[], &[fp8]).unwrap_err().to_string().contains("GGUF has no type F8_E4M3"));
    let short = Tensor { name: "w", dtype: Dtype::F32, shape: &[2], bytes: &[0; 4] };
    assert!(write::safetensors(&[short], &[]).is_err() && write::gguf(&[], &[short]).is_err());
}
