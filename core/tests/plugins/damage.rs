//! Whatever is done to a manifest, a lock or a library's tables, the reader of that file answers: with an error that names
//! the place, or with what is written there.

use std::path::Path;

use metrale_core::plugin::elf;
use metrale_core::plugin::trust::{LOCK_FILE, Lock};
use metrale_plugin_api::manifest::Manifest;
use proptest::prelude::*;

use crate::workshop::{ROOT, fixture, library_name};

/// Replaces a piece of a text with another; positions are taken modulo the length.
fn replaced(text: &str, (start, length, piece): &(usize, usize, String)) -> String {
    let chars: Vec<char> = text.chars().collect();
    let start = start % (chars.len() + 1);
    let end = (start + length).min(chars.len());
    chars[..start].iter().copied().chain(piece.chars()).chain(chars[end..].iter().copied()).collect()
}

fn edits() -> impl Strategy<Value = Vec<(usize, usize, String)>> {
    let piece = prop_oneof![
        "\\PC{0,12}",
        "[\\[\\]\"'=#.,{}\\n0-9a-z]{0,12}",
        Just("\n[[model]]\n".to_owned()),
        Just("model_type = 7\n".to_owned()),
        Just("[plugin]\n".to_owned()),
    ];
    prop::collection::vec((any::<usize>(), 0..40_usize, piece), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn manifests(edits in edits()) {
        let text = std::fs::read_to_string(Path::new(ROOT).join("plugins/llama/plugin.toml")).unwrap();
        let text = edits.iter().fold(text, |text, edit| replaced(&text, edit));
        match Manifest::parse(&text) {
            Ok(manifest) => {
                prop_assert!(!manifest.plugin.name.is_empty());
                prop_assert!(!manifest.library_file().contains('/'), "{:?}", manifest.library_file());
            }
            Err(error) => prop_assert!(error.to_string().len() > 10, "{error}"),
        }
    }

    #[test]
    fn manifests_of_anything(text in "\\PC{0,200}") {
        prop_assert!(Manifest::parse(&text).is_err());
    }

    #[test]
    fn locks(edits in edits()) {
        let folder = tempfile::tempdir().unwrap();
        let text = "[plugin.llama]\nversion = \"0.1.0\"\nsha256 = \"00ff\"\n".to_owned();
        let text = edits.iter().fold(text, |text, edit| replaced(&text, edit));
        std::fs::write(folder.path().join(LOCK_FILE), text).unwrap();
        if let Err(error) = Lock::read(folder.path()) {
            prop_assert!(error.to_string().contains(LOCK_FILE), "{error}");
        }
    }
}

#[test]
fn tables_of_a_library() {
    let folder = fixture("left");
    let library = folder.path().join(library_name("left"));
    let whole = std::fs::read(&library).unwrap();
    let facts = elf::read(&library, &whole).unwrap();
    assert!(facts.exports.iter().any(|name| name.starts_with("metrale_plugin")), "{facts:?}");
    // Half of the damage hits the headers at the beginning, where all offsets are.
    let place = prop_oneof![0..2048_usize, any::<usize>()];
    let word = prop_oneof![Just(u64::MAX), Just(1 << 63), Just(1 << 40), 0..4096_u64, any::<u64>()];
    let damage = prop::collection::vec((place, word, 1..9_usize), 1..6);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1024,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let read = |damage: Vec<(usize, u64, usize)>| {
        let mut bytes = whole.clone();
        for (at, word, length) in damage {
            let at = at % (bytes.len() - 8);
            bytes[at..at + length.min(8)].copy_from_slice(&word.to_le_bytes()[..length.min(8)]);
        }
        if let Err(error) = elf::read(&library, &bytes) {
            let text = error.to_string();
            prop_assert!(text.contains("error[P0202]") && text.contains("expected"), "{text}");
        }
        Ok(())
    };
    runner.run(&damage, read).unwrap();
}
