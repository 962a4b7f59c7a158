//! Files that are no plugin for this machine, or not to be trusted: refused before anything is opened.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use metrale_core::plugin::discover::SearchPath;
use metrale_core::plugin::{PluginError, Registry, Status};
use tempfile::TempDir;

use crate::workshop::{fixture, library_name, metrale, text};

fn error_of(folder: &Path) -> String {
    let registry = Registry::of_folder(folder, None);
    registry.candidates()[0].status().error().map(PluginError::to_string).unwrap_or_default()
}

/// A fixture whose library is changed.
fn with_library(change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> TempDir {
    let folder = fixture("left");
    let library = folder.path().join(library_name("left"));
    let bytes = std::fs::read(&library).unwrap();
    std::fs::write(&library, change(bytes)).unwrap();
    folder
}

#[track_caller]
fn refused(folder: &Path, texts: &[&str]) {
    let error = error_of(folder);
    for text in texts {
        assert!(error.contains(text), "expected {text:?} in\n{error}");
    }
    // Probing does not open it either.
    let inspected = metrale(&["plugins", "inspect", text_of(folder)]);
    assert!(!inspected.success);
    inspected.says(&texts[..1]);
}

fn text_of(folder: &Path) -> &str {
    text(folder)
}

#[test]
fn a_text_file() {
    let folder = with_library(|_| b"INPUT(libsomething.so)".to_vec());
    refused(
        folder.path(),
        &["error[P0202]", "it is not an ELF file", "expected  the bytes 7f 45 4c 46", "found     text"],
    );
}

#[test]
fn an_empty_file() {
    refused(with_library(|_| Vec::new()).path(), &["error[P0202]", "an empty file"]);
}

#[test]
fn a_truncated_library_at_every_length() {
    let folder = fixture("left");
    let library = folder.path().join(library_name("left"));
    let whole = std::fs::read(&library).unwrap();
    let lengths = (0..whole.len()).step_by(whole.len() / 40).chain([4, 63, 64, whole.len() - 1]);
    for length in lengths {
        std::fs::write(&library, &whole[..length]).unwrap();
        let error = error_of(folder.path());
        assert!(error.contains("error[P0202]"), "{length} bytes: {error:?}");
    }
    std::fs::write(&library, &whole[..whole.len() / 2]).unwrap();
    refused(folder.path(), &["error[P0202]", "it is truncated", "expected", "found"]);
}

#[test]
fn another_machine() {
    let other = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    let folder = with_library(|mut bytes| {
        bytes[18] = other;
        bytes
    });
    refused(folder.path(), &["error[P0202]", "it is for another machine", "expected", "found"]);
}

#[test]
fn a_program() {
    let folder = fixture("left");
    let library = folder.path().join(library_name("left"));
    std::fs::copy("/proc/self/exe", &library).unwrap();
    refused(folder.path(), &["error[P0208]", "metrale_plugin_1"]);
}

#[test]
fn no_entry_symbol() {
    refused(
        fixture("no-entry").path(),
        &[
            "error[P0208]",
            "is a library but not a plugin",
            "expected  metrale_plugin_1",
            "found     something_else",
        ],
    );
}

#[test]
fn a_manifest_of_another_library() {
    let folder = fixture("left");
    let manifest = folder.path().join("plugin.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("model_type = \"left\"", "model_type = \"else\"")).unwrap();
    let registry = Registry::of_folder(folder.path(), None);
    let error = registry.candidates()[0].open().err().unwrap().to_string();
    assert!(error.contains("error[P0106]"), "{error}");
    assert!(
        error.contains("model[0].model_type = \"else\"") && error.contains("model[0].model_type = \"left\""),
        "{error}"
    );
}

#[test]
fn a_link_to_a_plugin_that_is_there_already() {
    let left = fixture("left");
    let plugins = tempfile::tempdir().unwrap();
    symlink(left.path(), plugins.path().join("a-left")).unwrap();
    symlink(left.path(), plugins.path().join("b-left")).unwrap();
    let alias = plugins.path().join("c-alias");
    std::fs::create_dir(&alias).unwrap();
    let manifest = std::fs::read_to_string(left.path().join("plugin.toml")).unwrap();
    std::fs::write(alias.join("plugin.toml"), manifest.replace("name = \"left\"", "name = \"alias\""))
        .unwrap();
    symlink(left.path().join(library_name("left")), alias.join(library_name("alias"))).unwrap();
    let registry = Registry::search(&SearchPath::of(&[plugins.path().to_owned()]), None);
    // The same folder twice is one plugin; the same library under another name is refused.
    let statuses: Vec<_> = registry.candidates().iter().map(|c| (c.name(), c.status().word())).collect();
    assert_eq!(statuses, [("left", "ready"), ("alias", "refused")]);
    let error = registry.candidates()[1].status().error().unwrap().to_string();
    assert!(error.contains("error[P0111]") && error.contains("is the library of plugin `left`"), "{error}");
}

#[test]
fn a_world_writable_folder() {
    let folder = fixture("left");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    refused(folder.path(), &["error[P0701]: anyone may write to", "mode 777", "chmod o-w"]);
    let registry = Registry::of_folder(folder.path(), None);
    assert!(matches!(registry.candidates()[0].status(), Status::Refused(_)));
}

#[test]
fn a_world_writable_library() {
    let folder = fixture("left");
    let library = folder.path().join(library_name("left"));
    std::fs::set_permissions(&library, std::fs::Permissions::from_mode(0o757)).unwrap();
    refused(folder.path(), &["error[P0701]", "chmod o-w"]);
}
