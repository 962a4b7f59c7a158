//! What crosses between host and plugin, in this process: identity, allocators, panics, an old SDK.

use std::path::Path;

use metrale_core::plugin::{PluginError, Registry};
use metrale_graph::{Attrs, OpenModel};
use metrale_plugin_api::abi::PluginModule_Ref;

use crate::workshop::{fixture, metrale, text};

const CONFIG: &str = r#"{"vocab_size": 16, "hidden_size": 8}"#;

fn open(folder: &Path) -> PluginModule_Ref {
    let registry = Registry::of_folder(folder, None);
    registry.candidates()[0].open().unwrap()
}

fn model(module: PluginModule_Ref, config: &str) -> OpenModel {
    OpenModel::open(module, &Attrs::new().with("config.json", config), None).unwrap()
}

#[test]
fn two_plugins_keep_their_identity() {
    let (left, right) = (fixture("left"), fixture("right"));
    let (left, right) = (open(left.path()), open(right.path()));
    assert_eq!(left.build().crate_name.as_str(), "metrale-left");
    assert_eq!(right.build().crate_name.as_str(), "metrale-right");
    let (left, right) = (model(left, CONFIG), model(right, CONFIG));
    for _ in 0..3 {
        assert_eq!(left.info().unwrap().size("num_layers"), Some(1));
        assert_eq!(right.info().unwrap().size("num_layers"), Some(2));
    }
    let last_layer = |m: &OpenModel| m.trace("text", 0).unwrap().nodes.iter().filter_map(|n| n.layer).max();
    assert_eq!((last_layer(&left), last_layer(&right)), (Some(0), Some(1)));
}

/// The host's allocator and the plugin's both abort when they are given a block of the other.
#[test]
fn host_and_plugin_have_their_own_allocators() {
    let folder = fixture("allocator");
    let module = open(folder.path());
    for _ in 0..20 {
        let model = model(module, CONFIG);
        assert!(model.trace("text", 0).is_ok());
        assert!(model.trace("lm_head", 0).is_ok());
        // Errors are made on both sides of the boundary.
        assert!(model.trace("nothing", 0).unwrap_err().message.contains("nothing"));
    }
    let refused = OpenModel::open(module, &Attrs::new().with("config.json", "{}"), None).unwrap_err();
    assert!(refused.message.contains("`vocab_size` is missing"), "{refused}");
    let verified = metrale(&["plugins", "verify", text(folder.path())]);
    assert!(verified.success, "{}", verified.text);
}

/// Line of the fixture's only `panic!`.
fn panic_line() -> u32 {
    let source =
        std::fs::read_to_string(Path::new(crate::workshop::ROOT).join("tests/abi/panics/src/lib.rs"))
            .unwrap();
    source.lines().position(|l| l.contains("panic!(")).unwrap() as u32 + 1
}

#[test]
fn a_panic_in_open_is_an_error_with_file_and_line() {
    let folder = fixture("panics");
    let module = open(folder.path());
    let attrs = Attrs::new().with("config.json", r#"{"fault": "panic:open"}"#);
    let failure = OpenModel::open(module, &attrs, None).unwrap_err();
    assert!(failure.panicked);
    assert_eq!(failure.message, "panicked: out of ideas in open");
    assert!(failure.source.file.ends_with("panics/src/lib.rs"), "{}", failure.source);
    assert_eq!(failure.source.line, panic_line());
    // The host lives, and so does the plugin.
    assert!(model(module, r#"{"fault": "none"}"#).trace("text", 0).is_ok());
}

#[test]
fn a_panic_in_trace_is_an_error_with_layer_and_ends_the_model() {
    let folder = fixture("panics");
    let module = open(folder.path());
    let broken = model(module, r#"{"fault": "panic:trace"}"#);
    let failure = broken.trace("text", 0).unwrap_err();
    assert!(failure.panicked);
    assert_eq!((failure.layer, failure.source.line), (Some(2), panic_line()));
    let text = PluginError::from_failure("panics", Some("text"), failure).to_string();
    assert!(text.contains("plugin `panics` panicked while it traced `text`, layer 2"), "{text}");
    assert!(broken.trace("lm_head", 0).unwrap_err().message.contains("panicked before"));
    assert!(model(module, r#"{"fault": "none"}"#).trace("text", 0).is_ok());
}

#[test]
fn a_panic_in_drop_is_contained() {
    let folder = fixture("panics");
    drop(model(open(folder.path()), r#"{"fault": "panic:close"}"#));
}

#[test]
fn a_plugin_that_ends_its_process_is_the_result_of_a_check() {
    let folder = fixture("panics");
    let configs = folder.path().join("configs");
    std::fs::create_dir(&configs).unwrap();
    let config = r#"{"model_type": "panics", "fault": "abort:trace"}"#;
    std::fs::write(configs.join("panics.json"), config).unwrap();
    let verified = metrale(&["plugins", "verify", text(folder.path())]);
    assert!(!verified.success);
    verified.says(&["error[P0210]: plugin `panics` ended the process of check", "SIGABRT", "1 failed"]);
}

#[test]
fn a_plugin_of_sdk_1_0_loads() {
    let folder = fixture("frozen");
    let module = open(folder.path());
    assert_eq!(module.build().api_version.as_str(), "1.0.0");
    let verified = metrale(&["plugins", "verify", text(folder.path()), "--level", "2"]);
    assert!(verified.success, "{}", verified.text);
}
