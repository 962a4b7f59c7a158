//! Plugins of SDKs that do not exist yet: today's SDK with a patch.

use std::path::{Path, PathBuf};

use metrale_core::plugin::{Registry, Status};
use metrale_graph::{Attrs, OpenModel};

use crate::workshop::{ROOT, cargo, metrale, package, target, text};

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() { copy_tree(&path, &to) } else { std::fs::copy(&path, &to).map(|_| ()).unwrap() }
    }
}

fn patch(file: &Path, from: &str, to: &str) {
    let source = std::fs::read_to_string(file).unwrap();
    assert!(source.contains(from), "{} has no {from:?}", file.display());
    std::fs::write(file, source.replace(from, to)).unwrap();
}

const NEWS: &str = r#"
impl Graph {
    /// An op of the future.
    #[track_caller]
    pub fn block_sparse_attention(&self, x: Value) -> Result<Value> {
        self.op1("block_sparse_attention/1", &[x.0], &Attrs::new())
    }

    /// A host service of the future.
    #[track_caller]
    pub fn require_host(&self, id: &str) -> Result<()> {
        if (self.host.0.table.extension)(self.host.0, RStr::from_str(id)).is_null() {
            return Err(PluginError::new(format!("this metrale does not offer `{id}`")));
        }
        Ok(())
    }
}
"#;

/// Writes `folder/sdk`: one more op, one more extension on either side, and another version.
fn make_sdk(folder: &Path, version: &str) -> PathBuf {
    let sdk = folder.join("sdk");
    copy_tree(&Path::new(ROOT).join("plugin-api/src"), &sdk.join("src"));
    let manifest = std::fs::read_to_string(Path::new(ROOT).join("tests/abi/sdk-1.0/Cargo.toml")).unwrap();
    let manifest = manifest.replace("\"1.0.0\"", &format!("\"{version}\""));
    std::fs::write(sdk.join("Cargo.toml"), manifest).unwrap();

    let graph = sdk.join("src/graph.rs");
    let source = std::fs::read_to_string(&graph).unwrap();
    std::fs::write(&graph, source + NEWS).unwrap();

    let export = sdk.join("src/export.rs");
    patch(
        &export,
        "extern \"C\" fn extension(_id: RStr<'_>) -> Extension {\n    Extension::NULL\n}",
        r#"
/// An extension of the future.
#[repr(C)]
#[derive(abi_stable::StableAbi)]
pub struct DraftHead1 {
    depth: u32,
}

static DRAFT_HEAD: DraftHead1 = DraftHead1 { depth: 2 };

extern "C" fn extension(id: RStr<'_>) -> Extension {
    if id.as_str() == "metrale.draft-head/1" { Extension::of(&DRAFT_HEAD) } else { Extension::NULL }
}
"#,
    );
    sdk
}

/// Builds a plugin called `name` with a future SDK; `layer` is the body of its `layer`.
fn build(name: &str, version: &str, layer: &str, change: impl FnOnce(&Path, &Path)) -> tempfile::TempDir {
    let folder = target().join("future").join(name);
    let sdk = make_sdk(&folder, version);
    copy_tree(&Path::new(ROOT).join("tests/abi/frozen"), &folder.join("plugin"));
    let plugin = folder.join("plugin");
    patch(&plugin.join("Cargo.toml"), "metrale-frozen", &format!("metrale-{name}"));
    patch(&plugin.join("Cargo.toml"), "metrale_frozen", &format!("metrale_{}", name.replace('-', "_")));
    patch(&plugin.join("Cargo.toml"), "../sdk-1.0", "../sdk");
    patch(&plugin.join("plugin.toml"), "\"frozen\"", &format!("\"{name}\""));
    patch(
        &plugin.join("src/lib.rs"),
        "let positions = g.positions()?;",
        &format!("{layer}\n        let positions = g.positions()?;"),
    );
    change(&sdk, &plugin);
    let built = cargo(&plugin, &["build", "--release"]);
    assert!(built.success, "{}", built.text);
    package(&plugin, name)
}

const CONFIG: &str = r#"{"vocab_size": 16, "hidden_size": 8, "num_heads": 2}"#;

#[test]
fn a_newer_minor_without_news_loads() {
    let folder = build("next-minor", "1.7.3", "", |_, plugin| {
        patch(&plugin.join("plugin.toml"), "\"1.0\"", "\"1.7\"");
    });
    let registry = Registry::of_folder(folder.path(), None);
    let module = registry.candidates()[0].open().unwrap();
    assert_eq!(module.build().api_version.as_str(), "1.7.3");
    assert!(!module.extension()("metrale.draft-head/1".into()).is_null());
    let model = OpenModel::open(module, &Attrs::new().with("config.json", CONFIG), None).unwrap();
    assert!(model.trace("text", 0).is_ok());
}

#[test]
fn a_newer_op_is_refused_by_name() {
    let folder = build("next-op", "1.7.4", "let h = g.block_sparse_attention(h)?;", |_, plugin| {
        patch(&plugin.join("plugin.toml"), "\"1.0\"", "\"1.7\"");
    });
    let registry = Registry::of_folder(folder.path(), None);
    let module = registry.candidates()[0].open().unwrap();
    let model = OpenModel::open(module, &Attrs::new().with("config.json", CONFIG), None).unwrap();
    let failure = model.trace("text", 0).unwrap_err();
    assert_eq!(failure.op.as_ref().map(|(_, name)| name.as_str()), Some("block_sparse_attention/1"));
    assert!(failure.source.file.ends_with("src/lib.rs") && failure.source.line > 0, "{}", failure.source);

    // Where the manifest lists it, nothing is opened.
    patch(
        &folder.path().join("plugin.toml"),
        "entry_points = [",
        "ops = [\"linear/1\", \"block_sparse_attention/1\"]\nentry_points = [",
    );
    let registry = Registry::of_folder(folder.path(), None);
    let status = registry.candidates()[0].status();
    assert!(matches!(status, Status::Refused(_)), "{status}");
    let error = status.error().unwrap().to_string();
    assert!(error.contains("error[P0108]") && error.contains("block_sparse_attention/1"), "{error}");
    assert!(!error.contains("linear/1"), "{error}");
}

#[test]
fn a_newer_host_service_is_refused_by_name() {
    let folder = build("next-service", "1.7.5", "g.require_host(\"metrale.paged-weights/1\")?;", |_, _| {});
    let registry = Registry::of_folder(folder.path(), None);
    let module = registry.candidates()[0].open().unwrap();
    let model = OpenModel::open(module, &Attrs::new().with("config.json", CONFIG), None).unwrap();
    let failure = model.trace("text", 0).unwrap_err();
    assert!(failure.message.contains("metrale.paged-weights/1"), "{failure}");
}

#[test]
fn a_newer_major_is_refused_unopened() {
    let folder = build("next-major", "2.0.0", "", |sdk, _| {
        patch(&sdk.join("src/export.rs"), "metrale_plugin_1", "metrale_plugin_2");
        patch(&sdk.join("src/abi.rs"), "ABI_MAJOR: u32 = 1", "ABI_MAJOR: u32 = 2");
    });
    let inspected = metrale(&["plugins", "inspect", text(folder.path())]);
    assert!(!inspected.success);
    inspected.says(&[
        "error[P0201]",
        "was built for ABI 2; this metrale reads ABI 1",
        "help: install a build for plugin-api 1.x",
    ]);
}
