//! Unmaintained and unsafe machinery stays where it is named.

use std::path::{Path, PathBuf};

use crate::workshop::ROOT;

/// Where the binary interface is made, offered and opened.
const ABI_STABLE: [&str; 5] = [
    "core/src/plugin/library.rs",
    "plugin-api/graph/src/host.rs",
    "plugin-api/src/abi.rs",
    "plugin-api/src/export.rs",
    "plugin-api/src/graph.rs",
];

const LIBLOADING: [&str; 1] = ["core/src/plugin/library.rs"];

fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["core/src", "kernels/src", "plugin-api", "plugins", "tests/src", "tests/tests"] {
        collect(&Path::new(ROOT).join(folder), &mut found);
    }
    assert!(found.len() > 100, "{} files", found.len());
    found
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Files with code that names `word`; comments do not count.
fn users(word: &str) -> Vec<String> {
    let names_it = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().any(|l| !l.trim_start().starts_with("//") && l.contains(word))
    };
    let relative = |p: PathBuf| p.strip_prefix(ROOT).unwrap().display().to_string();
    let mut users: Vec<_> = sources().into_iter().filter(names_it).map(relative).collect();
    users.sort();
    users
}

#[test]
fn abi_stable_is_used_in_named_files_only() {
    assert_eq!(users("abi_stable"), ABI_STABLE);
}

#[test]
fn libloading_is_used_in_one_file() {
    assert_eq!(users("libloading"), LIBLOADING);
}

#[test]
fn plugins_depend_on_the_sdk_alone() {
    for entry in std::fs::read_dir(Path::new(ROOT).join("plugins")).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        let Ok(text) = std::fs::read_to_string(&manifest) else { continue };
        let table: toml::Table = text.parse().unwrap();
        let names: Vec<_> = table["dependencies"].as_table().unwrap().keys().collect();
        assert_eq!(names, ["metrale-plugin-api"], "{}", manifest.display());
    }
}
