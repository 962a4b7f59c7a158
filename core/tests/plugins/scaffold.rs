//! What `metrale plugins new` writes builds, passes its tests and verifies as it is.

use std::path::Path;

use crate::workshop::{self, cargo, metrale, metrale_plain, scaffold, text};

#[test]
fn the_scaffold_verifies_untouched() {
    let (_folder, project) = scaffold("fresh-start");
    let built = cargo(&project, &["build", "--release"]);
    assert!(built.success, "{}", built.text);
    assert!(!built.text.contains("warning"), "{}", built.text);
    let verified = metrale(&["plugins", "verify", text(&project), "--level", "2"]);
    assert!(verified.success, "{}", verified.text);
    verified.says(&["fresh-start 0.1.0", "numbers.decode-is-prefill", " 0 failed"]);
    assert!(!verified.text.contains("FAIL"), "{}", verified.text);

    let tested = cargo(&project, &["test"]);
    assert!(tested.success, "{}", tested.text);
    tested.says(&["level_0_boundary ... ok", "level_1_trace ... ok", "level_2_numbers ... ok"]);

    // The line of its README that makes it ready to serve.
    let library = workshop::library_name("fresh-start");
    std::fs::copy(workshop::target().join("release").join(&library), project.join(&library)).unwrap();
    let parent = project.parent().unwrap();
    metrale_plain(&["plugins", "list", "--plugins", text(parent)])
        .says(&["fresh_start", "1 ready, 0 refused, 0 failed"]);
    assert!(metrale_plain(&["plugins", "verify", text(&project)]).success);
}

#[test]
fn a_library_that_is_not_built_says_what_to_do() {
    let (_folder, project) = scaffold("not-built");
    let verified = metrale(&["plugins", "verify", text(&project)]);
    assert!(!verified.success);
    verified.says(&["error[P0107]", "cargo build --release && cp target/release/libmetrale_not_built.so ."]);
}

#[test]
fn names_and_places_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let new = |name: &str, sdk: &str| {
        let made = metrale(&["plugins", "new", name, "--sdk", sdk, "--into", text(folder.path())]);
        assert!(!made.success, "{}", made.text);
        made
    };
    new("Big", workshop::ROOT).says(&["`Big` is no plugin name", "expected"]);
    new("../up", workshop::ROOT).says(&["is no plugin name"]);
    new("fine", "/nonexistent").says(&["/nonexistent does not hold the plugin SDK", "help:"]);
    std::fs::create_dir(folder.path().join("taken")).unwrap();
    new("taken", workshop::ROOT).says(&["already exists"]);
    assert!(!Path::new(folder.path()).join("fine").exists());
}
