use std::fs;

use metrale_graph::checkpoint::gguf::Value;
use metrale_graph::checkpoint::write::{self, Tensor};
use metrale_graph::checkpoint::{CheckpointError, Dtype};
use tempfile::TempDir;

use super::*;

fn safetensors_file(name: &str, value: u8) -> Vec<u8> {
    write::safetensors(&[Tensor { name, dtype: Dtype::U8, shape: &[2], bytes: &[value; 2] }], &[]).unwrap()
}

fn gguf_file(metadata: &[(&str, Value)]) -> Vec<u8> {
    let tensor = Tensor { name: "token_embd.weight", dtype: Dtype::F32, shape: &[1], bytes: &[1, 2, 3, 4] };
    write::gguf(metadata, &[tensor]).unwrap()
}

/// A directory with these files.
fn directory(files: &[(&str, &[u8])]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

fn error(files: &[(&str, &[u8])]) -> WeightsError {
    ModelSource::open(directory(files).path()).unwrap_err()
}

#[test]
fn a_directory_gives_headers_bytes_and_description() {
    let model = safetensors_file("a", 7);
    let files: [(&str, &[u8]); 5] = [
        ("config.json", br#"{"model_type":"llama"}"#),
        ("generation_config.json", b"{}"),
        ("model.safetensors", &model),
        ("consolidated.safetensors", b"not read"),
        ("tokenizer.json", b"{}"),
    ];
    let directory = directory(&files);
    let source = ModelSource::open(directory.path()).unwrap();
    let tensor = source.headers().get("a").unwrap();
    assert_eq!(source.tensor_bytes(tensor).unwrap(), [7, 7]);
    assert_eq!(source.file_of(tensor).unwrap(), directory.path().join("model.safetensors"));
    let config = source.config().unwrap();
    assert_eq!(config.config, r#"{"model_type":"llama"}"#);
    assert_eq!((config.generation_config.as_deref(), &config.preprocessor_config), (Some("{}"), &None));
    assert_eq!(source.find_file("tokenizer.json"), Some(directory.path().join("tokenizer.json")));
    assert_eq!(source.find_file("tokenizer.model"), None);
}

#[test]
fn tensor_bytes_outlive_the_source() {
    let directory = directory(&[("config.json", b"{}"), ("model.safetensors", &safetensors_file("a", 3))]);
    let source = ModelSource::open(directory.path()).unwrap();
    let bytes = source.tensor(source.headers().get("a").unwrap()).unwrap();
    drop(source);
    assert_eq!(bytes.clone().as_ref(), [3, 3]);
}

#[test]
fn a_tensor_of_another_model_is_refused() {
    let directory = directory(&[("config.json", b"{}"), ("model.safetensors", &safetensors_file("a", 3))]);
    let source = ModelSource::open(directory.path()).unwrap();
    let own = source.headers().get("a").unwrap();
    let far = [TensorInfo { file: 1, ..own.clone() }, TensorInfo { offset: u64::MAX, ..own.clone() }];
    for tensor in far {
        assert!(matches!(source.tensor_bytes(&tensor), Err(WeightsError::ForeignTensor { .. })));
        assert!(matches!(source.tensor(&tensor), Err(WeightsError::ForeignTensor { .. })));
    }
}

#[test]
fn shards_are_found_through_the_index() {
    let (one, two) = (safetensors_file("a", 1), safetensors_file("b", 2));
    let index = br#"{"metadata":{},"weight_map":{"a":"x.safetensors","b":"y.safetensors"}}"#;
    let (config, index) = (("config.json", b"{}".as_slice()), (INDEX_FILE, index.as_slice()));
    let both = directory(&[config, index, ("x.safetensors", &one), ("y.safetensors", &two)]);
    let source = ModelSource::open(both.path()).unwrap();
    let bytes = |name| source.tensor_bytes(source.headers().get(name).unwrap()).unwrap();
    assert_eq!((bytes("a"), bytes("b")), ([1, 1].as_slice(), [2, 2].as_slice()));

    let missing = error(&[config, index, ("x.safetensors", &one)]).to_string();
    assert!(missing.contains("1 of the weight files are missing: y.safetensors"), "{missing}");
    let swapped = error(&[config, index, ("x.safetensors", &two), ("y.safetensors", &one)]).to_string();
    assert!(swapped.contains(INDEX_FILE) && swapped.contains("`a` should be in x.safetensors"), "{swapped}");
}

#[test]
fn a_bad_config_is_named_with_its_path_and_reason() {
    let model = safetensors_file("a", 1);
    let weights = ("model.safetensors", model.as_slice());
    let message = |config: &[u8]| error(&[("config.json", config), weights]).to_string();
    assert!(matches!(error(&[weights]), WeightsError::NoConfig { .. }));
    let text = message(b"{\"a\": }");
    assert!(text.contains("config.json is not a JSON object: expected value at line 1"), "{text}");
    assert!(message(b"[1]").contains("invalid type: sequence, expected a map"));
    assert!(message(b"{\"a\": \"\xff\"}").contains("utf-8"));
    let huge = vec![b' '; (16 << 20) + 1];
    assert!(matches!(
        error(&[("config.json", &huge), weights]),
        WeightsError::TooLarge { bytes: 16_777_217, .. }
    ));
}

#[test]
fn damage_is_reported_with_the_file_it_is_in() {
    let whole = safetensors_file("a", 1);
    let truncated = error(&[("config.json", b"{}"), ("model.safetensors", &whole[..whole.len() - 1])]);
    assert!(matches!(
        &truncated,
        WeightsError::Checkpoint { path, source: CheckpointError::OutOfRange { .. } } if path.ends_with("model.safetensors")
    ));
    let empty = error(&[("config.json", b"{}"), ("model.safetensors", b"")]);
    assert!(
        matches!(empty, WeightsError::Checkpoint { source: CheckpointError::Truncated { .. }, .. }),
        "{empty}"
    );
}

#[test]
fn directories_that_are_no_model_say_what_is_missing() {
    assert!(matches!(error(&[]), WeightsError::NoConfig { .. }));
    let pickle = error(&[("config.json", b"{}"), ("pytorch_model.bin", b"")]).to_string();
    assert!(pickle.contains("PyTorch pickles (pytorch_model.bin)"), "{pickle}");
    assert!(matches!(
        error(&[("config.json", b"{}")]),
        WeightsError::Select { source: SelectError::NoWeights, .. }
    ));
    let lost = ModelSource::open(Path::new("/no/such/model")).unwrap_err().to_string();
    assert!(lost.starts_with("cannot open /no/such/model: "), "{lost}");
}

#[test]
fn a_gguf_file_is_opened_directly_or_through_its_directory() {
    let file = gguf_file(&[("general.architecture", Value::String("llama".into()))]);
    let directory = directory(&[("m.gguf", &file)]);
    for path in [directory.path().to_owned(), directory.path().join("m.gguf")] {
        let source = ModelSource::open(&path).unwrap();
        assert_eq!(source.headers().gguf().unwrap().architecture().unwrap(), "llama");
        let tensor = source.headers().get("token_embd.weight").unwrap();
        assert_eq!(source.tensor_bytes(tensor).unwrap(), [1, 2, 3, 4]);
        assert!(source.config().is_none());
    }
}

#[test]
fn parts_of_a_split_gguf_say_how_to_join_them() {
    let part = gguf_file(&[("split.count", Value::U16(3))]);
    assert!(matches!(error(&[("m-00001-of-00003.gguf", &part)]), WeightsError::SplitGguf { parts: 3, .. }));
}

#[test]
fn other_files_are_refused() {
    let directory = directory(&[("model.safetensors", &safetensors_file("a", 1)), ("notes.txt", b"")]);
    let shard = ModelSource::open(&directory.path().join("model.safetensors")).unwrap_err().to_string();
    assert!(shard.contains("give the directory that it is in"), "{shard}");
    assert!(matches!(
        ModelSource::open(&directory.path().join("notes.txt")),
        Err(WeightsError::NotAModel { .. })
    ));
}
