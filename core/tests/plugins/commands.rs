//! `metrale plugins inspect` and `lock`, and `metrale doctor`.

use std::path::Path;

use metrale_graph::checkpoint::Dtype;
use metrale_graph::checkpoint::write::{Tensor, safetensors};

use crate::workshop::{fixture, library_name, metrale, text};

/// A folder of two plugins.
fn folder_of_two() -> tempfile::TempDir {
    let plugins = tempfile::tempdir().unwrap();
    for name in ["left", "right"] {
        let from = fixture(name);
        let to = plugins.path().join(name);
        std::fs::create_dir(&to).unwrap();
        for file in ["plugin.toml", &library_name(name)] {
            std::fs::copy(from.path().join(file), to.join(file)).unwrap();
        }
    }
    plugins
}

#[test]
fn inspect_tells_all() {
    let plugins = folder_of_two();
    let inspected = metrale(&["plugins", "inspect", "right", "--plugins", text(plugins.path())]);
    assert!(inspected.success, "{}", inspected.text);
    inspected.says(&[
        "metrale-right 0.1.0",
        "plugin-api 1.0.0, ABI 1",
        "exports      metrale_plugin_1",
        "status       ready",
    ]);
    let unknown = metrale(&["plugins", "inspect", "middle", "--plugins", text(plugins.path())]);
    assert!(!unknown.success);
    unknown.says(&["error[P0109]: there is no plugin `middle`", "left, right"]);
}

#[test]
fn inspect_prints_graphs_and_json() {
    let plugins = folder_of_two();
    let config = plugins.path().join("config.json");
    std::fs::write(&config, r#"{"vocab_size": 16, "hidden_size": 8}"#).unwrap();
    let left = plugins.path().join("left");
    let shown = metrale(&["plugins", "inspect", text(&left), "--model", text(&config)]);
    assert!(shown.success, "{}", shown.text);
    shown.says(&["entry text 0", "embedding/1(", "tiny/src/lib.rs:", "entry lm_head 0"]);
    let json = metrale(&["plugins", "inspect", text(&left), "--model", text(&config), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.text).unwrap();
    assert_eq!(json["build"]["plugin_api"], "1.0.0");
    assert_eq!(json["links"]["exports"][0], "metrale_plugin_1");
    assert_eq!(json["graphs"].as_array().unwrap().len(), 2);
    assert_eq!(json["problem"], serde_json::Value::Null);
    std::fs::write(&config, "{}").unwrap();
    let refused = metrale(&["plugins", "inspect", text(&left), "--model", text(&config)]);
    assert!(!refused.success);
    refused.says(&[
        "error[P0303]: plugin `left` cannot open this model: `vocab_size` is missing",
        "tiny/src/lib.rs:",
    ]);
}

#[test]
fn a_lock_pins_what_it_lists() {
    let plugins = folder_of_two();
    let folder = text(plugins.path());
    let list = || metrale(&["plugins", "list", "--plugins", folder]);
    let locked = metrale(&["plugins", "lock", "--plugins", folder]);
    assert!(locked.success, "{}", locked.text);
    let json = metrale(&["plugins", "list", "--json", "--plugins", folder]);
    let json: serde_json::Value = serde_json::from_str(&json.text).unwrap();
    assert_eq!(json[1]["name"], "right");
    assert_eq!((&json[1]["status"], &json[1]["pinned"]), (&"ready".into(), &true.into()));
    list().says(&["pinned", "2 ready, 0 refused, 0 failed"]);

    // Another library, as good as the first, is not the one that was locked.
    append(&plugins.path().join("left").join(library_name("left")));
    list().says(&["1 ready, 1 refused, 0 failed", "does not match"]);
    let inspected = metrale(&["plugins", "inspect", "left", "--plugins", folder]);
    inspected.says(&[
        "error[P0702]",
        "locked",
        "found",
        "`metrale plugins lock left` if you changed it on purpose",
    ]);
    assert!(metrale(&["plugins", "lock", "left", "--plugins", folder]).success);
    list().says(&["2 ready, 0 refused, 0 failed"]);

    // A new plugin is not in the lock.
    let third = fixture("allocator");
    let to = plugins.path().join("allocator");
    std::fs::create_dir(&to).unwrap();
    for file in ["plugin.toml", &library_name("allocator")] {
        std::fs::copy(third.path().join(file), to.join(file)).unwrap();
    }
    list().says(&["2 ready, 1 refused, 0 failed"]);
    assert!(!metrale(&["plugins", "lock", "nobody", "--plugins", folder]).success);
    assert!(metrale(&["plugins", "lock", "allocator", "--plugins", folder]).success);
    list().says(&["3 ready, 0 refused, 0 failed"]);
}

/// Changes a library's hash and nothing else.
fn append(library: &Path) {
    let mut bytes = std::fs::read(library).unwrap();
    bytes.push(0);
    std::fs::write(library, bytes).unwrap();
}

#[test]
fn doctor_fails_when_a_plugin_is_broken() {
    let plugins = folder_of_two();
    let folder = text(plugins.path());
    let healthy = metrale(&["doctor", "--plugins", folder]);
    assert!(healthy.success, "{}", healthy.text);
    healthy.says(&[
        "processor",
        "threads",
        "memory",
        "GPU driver",
        "hub cache",
        "left",
        "ready: right",
        "nothing is broken",
    ]);
    std::fs::write(plugins.path().join("left").join(library_name("left")), "text").unwrap();
    let sick = metrale(&["doctor", "--plugins", folder]);
    assert!(!sick.success);
    sick.says(&["error[P0202]", "1 broken"]);
    let absent = metrale(&["doctor", "--plugins", "/no/such/folder"]);
    assert!(!absent.success);
    absent.says(&["error[P0104]: plugin folder /no/such/folder cannot be read"]);
}

#[test]
fn verify_tries_a_real_model() {
    let left = fixture("left");
    let model = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "left", "vocab_size": 16, "hidden_size": 8}"#;
    std::fs::write(model.path().join("config.json"), config).unwrap();
    let verify = |tensors: &[(&str, [usize; 2])]| {
        let bytes: Vec<Vec<u8>> = tensors
            .iter()
            .map(|(_, [a, b])| (0..a * b).flat_map(|i| (i as f32).sin().to_le_bytes()).collect())
            .collect();
        let stored: Vec<_> = tensors
            .iter()
            .zip(&bytes)
            .map(|((name, shape), bytes)| Tensor { name, dtype: Dtype::F32, shape, bytes })
            .collect();
        std::fs::write(model.path().join("model.safetensors"), safetensors(&stored, &[]).unwrap()).unwrap();
        metrale(&["plugins", "verify", text(left.path()), "--model", text(model.path())])
    };
    let good = verify(&[("table.weight", [16, 8])]);
    assert!(good.success, "{}", good.text);
    good.says(&[&format!("numbers.chunks             {}", text(model.path()))]);
    let more = verify(&[("table.weight", [16, 8]), ("vision.weight", [2, 2])]);
    assert!(!more.success);
    more.says(&["FAIL  trace.tensors", "found     vision.weight", "ignored = ["]);
    let other = verify(&[("table.weight", [17, 8])]);
    other.says(&["FAIL  trace.tensors", "wanted   [16, 8]\n       found    [17, 8]"]);
    std::fs::remove_file(model.path().join("model.safetensors")).unwrap();
    let none = metrale(&["plugins", "verify", text(left.path()), "--model", text(model.path())]);
    assert!(!none.success);
    none.says(&["FAIL  package.kit", text(model.path())]);
}
