//! Rules of the architecture that the compiler does not check: who may depend on whom, where `unsafe` may stand, and what
//! the core may not know.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Modules of the core and the modules that each may use. Devices execute the plans that `lower` makes.
const CORE_LAYERS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("kv", &[]),
    ("ssm", &["kv"]),
    ("weights", &[]),
    ("lower", &[]),
    ("device", &["lower", "weights"]),
    ("exec", &["device", "lower", "kv", "ssm", "error"]),
    ("speculative", &["exec", "error"]),
    ("sched", &["speculative", "exec", "kv", "ssm", "error"]),
    ("text", &["error"]),
    ("translation", &["text"]),
    ("plugin", &[]),
    ("config", &["speculative"]),
    ("images", &[]),
    ("server", &["sched", "speculative", "images", "translation", "error"]),
    (
        "factory",
        &[
            "server",
            "sched",
            "speculative",
            "exec",
            "device",
            "lower",
            "weights",
            "kv",
            "ssm",
            "text",
            "images",
            "translation",
            "plugin",
            "config",
            "error",
        ],
    ),
    (
        "cli",
        &["server", "sched", "speculative", "translation", "exec", "weights", "plugin", "config", "error"],
    ),
];

/// Where `unsafe` is allowed: the two ends of the plugin boundary, memory maps, kernels, replays of recorded
/// work, and two test allocators.
const UNSAFE: &[&str] = &[
    "core/src/device/cuda/graphs.rs",
    "core/src/plugin/library.rs",
    "core/src/weights/mmap.rs",
    "core/tests/plugins/main.rs",
    "kernels/src/lib.rs",
    "kernels/tests/cuda/graph.rs",
    "plugin-api/src/abi.rs",
    "plugin-api/src/export.rs",
    "tests/src/allocations.rs",
];

/// The only files that may name the crates of the plugin boundary.
const BOUNDARY: &[(&str, &[&str])] = &[
    ("libloading", &["core/src/plugin/library.rs"]),
    (
        "abi_stable",
        &[
            "core/src/plugin/library.rs",
            "plugin-api/graph/src/host.rs",
            "plugin-api/src/abi.rs",
            "plugin-api/src/export.rs",
            "plugin-api/src/graph.rs",
        ],
    ),
];

const FAMILIES: &[&str] =
    &["llama", "mistral", "qwen", "smollm", "nllb", "m2m_100", "glm", "minimax", "deepseek", "gemma"];
/// Files of the core that name vocabularies as GGUF files do.
const VOCABULARY_NAMES: &[&str] =
    &["core/src/text/tokenizer/pre_tokenizer.rs", "core/src/text/tokenizer/gguf.rs"];
/// Text that names a family without knowing it: a foreign tool, an example of a flag.
const NOT_A_FAMILY: &[&str] = &["llama-gguf-split", "gemma=acme-gemma"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All Rust files under the folders, as (path from the root, text).
fn sources(folders: &[&str]) -> Vec<(String, String)> {
    fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    collect(&path, files);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    let root = root();
    let mut files = Vec::new();
    folders.iter().for_each(|folder| collect(&root.join(folder), &mut files));
    files.sort();
    assert!(!files.is_empty(), "no sources in {folders:?}");
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
    files.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// The code without comments, and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or("");
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn dependencies(manifest: &str, section: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join(manifest)).unwrap();
    let manifest: toml::Table = toml::from_str(&text).unwrap();
    let section = manifest.get(section).and_then(toml::Value::as_table);
    section.map(|table| table.keys().cloned().collect()).unwrap_or_default()
}

fn plugins() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("plugins")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

#[test]
fn plugins_depend_on_the_plugin_api_only() {
    for plugin in plugins() {
        let found = dependencies(&format!("plugins/{plugin}/Cargo.toml"), "dependencies");
        assert_eq!(found, BTreeSet::from(["metrale-plugin-api".to_owned()]), "plugins/{plugin}");
    }
}

#[test]
fn plugins_stay_small() {
    for plugin in plugins() {
        let lines: usize = sources(&[&format!("plugins/{plugin}/src")])
            .iter()
            .map(|(_, text)| code(text).lines().filter(|line| !line.trim().is_empty()).count())
            .sum();
        assert!(lines < 500, "plugins/{plugin} has {lines} lines of code");
    }
}

#[test]
fn lower_crates_know_nothing_of_the_crates_above() {
    let above: &[(&str, &[&str])] = &[
        ("plugin-api/Cargo.toml", &["metrale-graph", "metrale-core", "metrale-kernels", "tokio", "cudarc"]),
        ("plugin-api/graph/Cargo.toml", &["metrale-core", "metrale-kernels", "tokio", "cudarc"]),
        ("plugin-api/reference/Cargo.toml", &["metrale-core", "metrale-kernels", "tokio", "cudarc"]),
        ("kernels/Cargo.toml", &["metrale-core", "metrale-graph", "metrale-plugin-api", "metrale-reference"]),
    ];
    for (manifest, forbidden) in above {
        let found = dependencies(manifest, "dependencies");
        assert!(!found.is_empty(), "{manifest} has no dependencies: is it read at all?");
        for name in *forbidden {
            assert!(!found.contains(*name), "{manifest} depends on {name}");
        }
    }
}

#[test]
fn modules_of_the_core_use_lower_ones_only() {
    let mut seen = BTreeSet::new();
    for (file, text) in sources(&["core/src"]) {
        let module = file.trim_start_matches("core/src/").split(['/', '.']).next().unwrap().to_owned();
        if module == "lib" || module == "main" {
            continue;
        }
        let Some((_, allowed)) = CORE_LAYERS.iter().find(|(name, _)| *name == module) else {
            panic!("{file}: module `{module}` has no place in the list of layers");
        };
        seen.insert(module.clone());
        for used in code(&text).split("crate::").skip(1) {
            let used: String = used.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            let known = CORE_LAYERS.iter().any(|(name, _)| *name == used);
            assert!(
                !known || used == module || allowed.contains(&used.as_str()),
                "{file} uses crate::{used}; `{module}` may use {allowed:?}"
            );
        }
    }
    assert_eq!(seen.len(), CORE_LAYERS.len(), "modules that exist: {seen:?}");
}

#[test]
fn unsafe_code_stands_in_the_named_files_only() {
    let found: Vec<String> =
        sources(&["core", "kernels", "plugin-api", "plugins", "tests/src", "tests/tests"])
            .into_iter()
            .filter(|(file, _)| file != "tests/tests/architecture.rs")
            .filter(|(_, text)| code(text).contains("allow(unsafe_code"))
            .map(|(file, _)| file)
            .collect();
    assert_eq!(found, UNSAFE);
}

#[test]
fn the_plugin_boundary_is_crossed_in_the_named_files_only() {
    for (name, allowed) in BOUNDARY {
        let found: Vec<String> = sources(&["core/src", "kernels/src", "plugin-api", "plugins"])
            .into_iter()
            .filter(|(_, text)| code(text).contains(&format!("{name}::")))
            .map(|(file, _)| file)
            .collect();
        assert_eq!(&found, allowed, "files that use {name}");
    }
}

#[test]
fn the_core_and_the_kernels_name_no_family() {
    for (file, text) in sources(&["core/src", "kernels/src"]) {
        if VOCABULARY_NAMES.contains(&file.as_str()) || file.ends_with("/tests.rs") {
            continue;
        }
        let mut text = code(&text).to_lowercase();
        NOT_A_FAMILY.iter().for_each(|phrase| text = text.replace(phrase, ""));
        for family in FAMILIES {
            assert!(!text.contains(family), "{file} names `{family}`");
        }
    }
}

#[test]
fn files_are_named_after_concepts() {
    for (file, _) in
        sources(&["core/src", "kernels/src", "plugin-api", "plugins", "tests/src", "tests/tests"])
    {
        let stem = Path::new(&file).file_stem().unwrap().to_string_lossy().into_owned();
        for name in ["utils", "util", "helpers", "helper", "common", "misc", "manager"] {
            assert_ne!(stem, name, "{file}");
        }
    }
}
