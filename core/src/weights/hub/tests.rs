mod server;

use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::ApiError;
use metrale_graph::checkpoint::Dtype;
use metrale_graph::checkpoint::write::{self, Tensor};
use server::{FakeHub, RemoteFile};
use tempfile::TempDir;

use super::*;
use crate::weights::{ModelSource, SelectError};

const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

fn safetensors_file(name: &str) -> Vec<u8> {
    write::safetensors(&[Tensor { name, dtype: Dtype::U8, shape: &[4], bytes: &[5; 4] }], &[]).unwrap()
}

/// A repository with two shards, an index, a tokenizer, and files that nobody needs.
fn sharded() -> Vec<RemoteFile> {
    let index = r#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#;
    vec![
        RemoteFile::small("README.md", b"# readme"),
        RemoteFile::small("config.json", b"{}"),
        RemoteFile::small("tokenizer.json", b"{}"),
        RemoteFile::small("model.safetensors.index.json", index.as_bytes()),
        RemoteFile::large("model-1.safetensors", &safetensors_file("a")),
        RemoteFile::large("model-2.safetensors", &safetensors_file("b")),
        RemoteFile::large("pytorch_model.bin", b"pickle"),
        RemoteFile::large("original/consolidated.safetensors", b"other format"),
    ]
}

struct Setup {
    hub: FakeHub,
    cache: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Setup {
    fn new(files: Vec<RemoteFile>) -> Self {
        let (hub, cache) = (FakeHub::start(SHA, files), tempfile::tempdir().unwrap());
        let home = ("HF_HOME", cache.path().display().to_string());
        Self { variables: vec![home, ("HF_ENDPOINT", hub.url())], hub, cache }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.insert(0, (name, value.to_owned()));
        self
    }

    fn client(&self) -> Hub {
        let variable = |name: &str| self.variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        Hub::from_variables(variable, None).unwrap()
    }

    fn fetch(&self, model: &str) -> Result<PathBuf, HubError> {
        self.client().fetch(&ModelId::parse(model).unwrap(), None)
    }

    fn offline(&self, model: &str) -> Result<PathBuf, HubError> {
        Hub { offline: true, ..self.client() }.fetch(&ModelId::parse(model).unwrap(), None)
    }

    fn repo(&self) -> PathBuf {
        self.cache.path().join("hub/models--org--model")
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_sharded_model_is_downloaded_into_the_standard_cache() {
    let setup = Setup::new(sharded());
    let path = setup.fetch("org/model").unwrap();
    assert_eq!(path, setup.repo().join("snapshots").join(SHA));
    assert_eq!(
        names(&path),
        [
            "config.json",
            "model-1.safetensors",
            "model-2.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
    assert_eq!(fs::read_to_string(setup.repo().join("refs/main")).unwrap(), SHA);
    assert!(path.join("config.json").is_symlink());
    let source = ModelSource::open(&path).unwrap();
    assert_eq!(source.tensor_bytes(source.headers().get("b").unwrap()).unwrap(), [5; 4]);
}

#[test]
fn a_complete_model_is_not_downloaded_again() {
    let setup = Setup::new(sharded());
    let path = setup.fetch("org/model").unwrap();
    let before = setup.hub.requests().len();
    assert_eq!(setup.fetch("org/model").unwrap(), path);
    assert_eq!(setup.hub.requests().len(), before + 1, "only the file list");
    let commit = setup.client().fetch(&ModelId::parse("org/model").unwrap(), Some(SHA)).unwrap();
    assert_eq!(
        (commit, setup.hub.requests().len()),
        (path.clone(), before + 1),
        "a commit needs no question"
    );
    assert_eq!(setup.offline("org/model").unwrap(), path);
    assert_eq!(setup.hub.requests().len(), before + 1);
}

#[test]
fn an_incomplete_cache_is_completed_online_and_named_offline() {
    let setup = Setup::new(sharded());
    let nothing = setup.offline("org/model").unwrap_err().to_string();
    assert!(nothing.starts_with("offline, and org/model (main) is not complete in "), "{nothing}");
    let path = setup.fetch("org/model").unwrap();
    fs::remove_file(path.join("model-2.safetensors")).unwrap();
    fs::remove_file(path.join("config.json")).unwrap();
    let Err(HubError::Offline { missing, .. }) = setup.offline("org/model") else {
        panic!("must be incomplete")
    };
    assert_eq!(missing, ["config.json", "model-2.safetensors"]);
    setup.fetch("org/model").unwrap();
    setup.offline("org/model").unwrap();
}

#[test]
fn a_cache_without_its_blobs_is_filled_again() {
    let setup = Setup::new(sharded());
    let path = setup.fetch("org/model").unwrap();
    fs::remove_dir_all(setup.repo().join("blobs")).unwrap();
    assert!(matches!(setup.offline("org/model"), Err(HubError::Offline { .. })));
    ModelSource::open(&setup.fetch("org/model").unwrap()).unwrap();
    assert!(path.join("model-1.safetensors").exists());
}

#[test]
fn a_new_revision_reuses_the_weights_that_did_not_change() {
    let old = Setup::new(sharded());
    old.fetch("org/model").unwrap();
    let new = "f".repeat(40);
    let mut files = sharded();
    files[1] = RemoteFile::small("config.json", b"{\"new\":1}");
    let hub = FakeHub::start(&new, files);
    let endpoint = hub.url();
    let setup = Setup { hub, ..old }.with("HF_ENDPOINT", &endpoint);
    let path = setup.fetch("org/model").unwrap();
    assert!(path.ends_with(&new));
    assert_eq!(fs::read(path.join("config.json")).unwrap(), b"{\"new\":1}");
    ModelSource::open(&path).unwrap();
    assert!(
        !setup.hub.requests().iter().any(|r| r.contains("model-1.safetensors")),
        "{:?}",
        setup.hub.requests()
    );
    assert_eq!(setup.offline("org/model").unwrap(), path);
}

#[test]
fn one_gguf_file_is_downloaded_alone() {
    let files = vec![RemoteFile::large("q4/m.gguf", b"GGUF4"), RemoteFile::large("m-q8.gguf", b"GGUF8")];
    let setup = Setup::new(files);
    let path = setup.fetch("org/model:q4/m.gguf").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"GGUF4");
    assert_eq!(setup.offline("org/model:q4/m.gguf").unwrap(), path);
    let missing = setup.fetch("org/model:other.gguf").unwrap_err().to_string();
    assert_eq!(missing, "org/model has no file other.gguf; it has m-q8.gguf, q4/m.gguf");
}

#[test]
fn repositories_without_usable_weights_cost_no_download() {
    let pickle = Setup::new(vec![
        RemoteFile::small("config.json", b"{}"),
        RemoteFile::large("pytorch_model.bin", b"x"),
    ]);
    let error = pickle.fetch("org/model").unwrap_err();
    assert!(matches!(error, HubError::Select { source: SelectError::OnlyPickle { .. }, .. }), "{error}");
    assert_eq!(pickle.hub.requests().len(), 1);
    let gguf = Setup::new(vec![RemoteFile::large("a.gguf", b"x"), RemoteFile::large("b.gguf", b"x")]);
    let error = gguf.fetch("org/model").unwrap_err().to_string();
    assert!(error.contains("(a.gguf, b.gguf)") && error.contains("org/name:file.gguf"), "{error}");
}

#[test]
fn an_interrupted_download_resumes() {
    let content = safetensors_file(&"long-name".repeat(20_000));
    let mut weights = RemoteFile::large("model.safetensors", &content);
    weights.break_once_at = Some(100_000);
    let setup = Setup::new(vec![RemoteFile::small("config.json", b"{}"), weights]);
    let path = setup.fetch("org/model").unwrap();
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), content);
    let ranges: Vec<_> =
        setup.hub.requests().into_iter().filter(|r| r.starts_with("/cdn/") && !r.ends_with("0-0")).collect();
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    assert!(ranges[0].ends_with("bytes=0-") && !ranges[1].ends_with("bytes=0-"), "{ranges:?}");
}

#[test]
fn a_part_that_is_already_whole_does_not_block_the_download() {
    let weights = RemoteFile::large("model.safetensors", &safetensors_file("a"));
    let part = format!("{}.part", weights.blob());
    let setup = Setup::new(vec![RemoteFile::small("config.json", b"{}"), weights.clone()]);
    fs::create_dir_all(setup.repo().join("blobs")).unwrap();
    fs::write(setup.repo().join("blobs").join(part), &weights.content).unwrap();
    ModelSource::open(&setup.fetch("org/model").unwrap()).unwrap();
}

#[test]
fn refusals_missing_models_and_dead_networks_are_told_apart() {
    let gated = Setup::new(sharded());
    gated.hub.require_token("hf_secret");
    let error = gated.fetch("org/model").unwrap_err();
    assert!(matches!(error, HubError::Denied { status: 401, has_token: false, .. }), "{error}");
    assert!(error.to_string().contains("set HF_TOKEN"));
    let gated = gated.with("HF_TOKEN", "hf_wrong");
    let error = gated.fetch("org/model").unwrap_err().to_string();
    assert!(error.contains("ask for access") && !error.contains("hf_wrong"), "{error}");
    gated.with("HF_TOKEN", "hf_secret").fetch("org/model").unwrap();

    let setup = Setup::new(sharded());
    assert!(matches!(setup.fetch("org/unknown"), Err(HubError::NoSuchRepo { .. })));
    let dead = setup.with("HF_ENDPOINT", "http://127.0.0.1:9");
    assert!(matches!(dead.fetch("org/model"), Err(HubError::Network { .. })));
}

#[test]
fn a_complete_cache_serves_when_the_hub_does_not() {
    let setup = Setup::new(sharded());
    let path = setup.fetch("org/model").unwrap();
    setup.hub.require_token("hf_secret");
    assert_eq!(setup.fetch("org/model").unwrap(), path, "denied");
    let dead = setup.with("HF_ENDPOINT", "http://127.0.0.1:9");
    assert_eq!(dead.fetch("org/model").unwrap(), path, "unreachable");
}

#[test]
fn the_token_file_is_used() {
    let setup = Setup::new(sharded());
    setup.hub.require_token("hf_file");
    fs::write(setup.cache.path().join("token"), "hf_file\n").unwrap();
    setup.fetch("org/model").unwrap();
}

#[test]
fn too_little_disk_space_is_said_before_the_download() {
    let mut huge = RemoteFile::large("model.safetensors", b"x");
    huge.claimed_size = Some(1 << 60);
    let setup = Setup::new(vec![RemoteFile::small("config.json", b"{}"), huge]);
    let error = setup.fetch("org/model").unwrap_err();
    assert!(matches!(error, HubError::DiskFull { needed, .. } if needed == 1 << 60), "{error}");
    assert!(!setup.hub.requests().iter().any(|r| r.contains("model.safetensors")));
}

#[test]
fn a_disk_that_fills_up_is_no_network_error() {
    let hub = Setup::new(vec![]).client();
    let full = hub.api_error(ApiError::IoError(std::io::ErrorKind::StorageFull.into()), "model.safetensors");
    assert!(matches!(full, HubError::DiskFilledUp { .. }), "{full}");
    let broken =
        hub.api_error(ApiError::IoError(std::io::ErrorKind::UnexpectedEof.into()), "model.safetensors");
    assert!(matches!(broken, HubError::Network { .. }), "{broken}");
}

#[test]
fn a_file_of_the_wrong_size_is_not_kept() {
    let mut weights = RemoteFile::large("model.safetensors", b"short");
    weights.claimed_size = Some(6);
    let setup = Setup::new(vec![RemoteFile::small("config.json", b"{}"), weights]);
    let error = setup.fetch("org/model").unwrap_err();
    assert!(matches!(error, HubError::Size { expected: 6, found: 5, .. }), "{error}");
    assert!(matches!(setup.offline("org/model"), Err(HubError::Offline { .. })));
}

#[test]
fn names_that_leave_the_cache_are_ignored() {
    let mut files = sharded();
    files.push(RemoteFile::small("../../../evil.json", b"{}"));
    let setup = Setup::new(files);
    setup.fetch("org/model").unwrap();
    assert!(!setup.hub.requests().iter().any(|r| r.contains("evil")));
    let evil = setup.client().fetch(&ModelId::parse("org/model").unwrap(), Some("../../main"));
    assert!(matches!(evil, Err(HubError::Revision { .. })));
}

#[test]
fn paths_ids_and_other_arguments_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    assert_eq!(resolve(path, None, None).unwrap(), directory.path());
    for text in
        ["model", "./no/dir", "/no/such/model", "a/b/c", "a/b:", "a/b:c.safetensors", "a/..", "a/b:../c.gguf"]
    {
        assert!(matches!(resolve(text, None, None), Err(HubError::NotAModel { .. })), "{text}");
    }
    let gguf = Some("q4/file.Q4_K_M.gguf".to_owned());
    let id = ModelId { repo: "Qwen/Qwen3-0.6B".to_owned(), gguf };
    assert_eq!(ModelId::parse("Qwen/Qwen3-0.6B:q4/file.Q4_K_M.gguf"), Some(id));
}

#[test]
fn the_standard_variables_are_honoured() {
    let hub = |variables: &[(&str, &str)], download_dir: Option<&str>| {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Hub::from_variables(variable, download_dir.map(Path::new)).unwrap()
    };
    let all = [
        ("HF_HOME", "/h"),
        ("HF_HUB_CACHE", "/c"),
        ("HF_ENDPOINT", "http://mirror/"),
        ("HF_HUB_OFFLINE", "1"),
    ];
    let client = hub(&all, None);
    assert_eq!(
        (client.cache.to_str(), client.endpoint.as_str(), client.offline),
        (Some("/c"), "http://mirror", true)
    );
    assert_eq!(hub(&all, Some("/d")).cache, Path::new("/d"));
    assert_eq!(hub(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "")], None).cache, Path::new("/h/hub"));
    assert_eq!(hub(&[("XDG_CACHE_HOME", "/x")], None).cache, Path::new("/x/huggingface/hub"));
    assert!(!hub(&[("HF_HUB_OFFLINE", "0")], None).offline);
    let secret = hub(&[("HF_TOKEN", "hf_secret"), ("HF_HOME", "/h")], None);
    assert!(!format!("{secret:?}").contains("hf_secret"));
}
