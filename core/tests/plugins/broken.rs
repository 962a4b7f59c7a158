//! Mistakes that authors make in the scaffold, and what `verify` says: what, where, wanted, found, what to do.

use std::path::Path;

use crate::workshop::{ROOT, Ran, cargo, library_name, metrale, scaffold, target, text};

/// Replaces `from` in src/lib.rs; returns the line that it is on.
fn edit(project: &Path, from: &str, to: &str) -> usize {
    let line = line_of(project, from);
    let path = project.join("src/lib.rs");
    let source = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, source.replacen(from, to, 1)).unwrap();
    line
}

/// The line of src/lib.rs that `text` begins on.
fn line_of(project: &Path, text: &str) -> usize {
    let source = std::fs::read_to_string(project.join("src/lib.rs")).unwrap();
    let at = source.find(text).unwrap_or_else(|| panic!("the scaffold has no {text:?}"));
    source[..at].matches('\n').count() + 1
}

fn verify(project: &Path) -> Ran {
    let built = cargo(project, &["build", "--release"]);
    assert!(built.success, "{}", built.text);
    let verified = metrale(&["plugins", "verify", text(project)]);
    assert!(!verified.success, "{}", verified.text);
    verified
}

#[test]
fn a_wrong_shape() {
    let (_folder, project) = scaffold("wrong-shape");
    edit(
        &project,
        "w.name(\"up_proj.weight\"), &[inner, hidden]",
        "w.name(\"up_proj.weight\"), &[hidden, inner]",
    );
    // The op that cannot use the weight is what is refused.
    let line = line_of(&project, "g.linear(h, up)?");
    let verified = verify(&project);
    verified.says(&[
        "FAIL  trace.entries",
        "error[P0302]: linear/1 multiplies [T, 32] with a weight [32, 48]: 48 inputs expected",
        &format!("--> src/lib.rs:{line} "),
        "entry text, layer 0, op",
        "help: a weight is [out, in]",
    ]);
    // The tutorial shows this very error.
    let error = verified.text.split("    error[").nth(1).unwrap().lines().take(3);
    let error: Vec<_> = error.map(|l| l.strip_prefix("    ").unwrap_or(l)).collect();
    let tutorial = std::fs::read_to_string(Path::new(ROOT).join("docs/writing-a-plugin.md")).unwrap();
    let error = format!("error[{}", error.join("\n"));
    assert!(tutorial.contains(&error), "the tutorial does not show\n{error}");
}

#[test]
fn a_panic() {
    let (_folder, project) = scaffold("panics-late");
    let line = edit(
        &project,
        "let w = &self.weights.index",
        "let _ = [0, 1][index + 1 + index / 9];\n        let w = &self.weights.index",
    );
    let verified = verify(&project);
    let place = format!("--> src/lib.rs:{line}: index out of bounds: the len is 2 but the index is 2");
    verified.says(&[
        "FAIL  boundary.hostile-config",
        "error[P0204]: plugin `panics-late` panicked while it traced `text`, layer 1",
        &place,
        "the server is unharmed",
    ]);
}

#[test]
fn a_missing_tensor() {
    let (_folder, project) = scaffold("misspelt");
    edit(&project, "\"o_proj.weight\"", "\"out_proj.weight\"");
    verify(&project).says(&[
        "FAIL  trace.tensors",
        "error[P0403]: the model asks for a tensor that the checkpoint does not have",
        "--> src/lib.rs:",
        "wanted   model.layers.0.self_attn.out_proj.weight   [32, 32]",
        "nearest  model.layers.0.self_attn.o_proj.weight   [32, 32] F32",
        "note: 1 more like this",
    ]);
}

#[test]
fn a_newer_op() {
    let (_folder, project) = scaffold("ahead");
    edit(
        &project,
        "let positions = g.positions()?;",
        "let [v] = g.op::<1>(\"block_sparse_attention/1\", &[], &metrale_plugin_api::Attrs::new())?;\n        let positions = g.positions()?;",
    );
    verify(&project).says(&[
        "FAIL  trace.entries",
        "error[P0301]: block_sparse_attention/1 is not an op that this version knows",
        "--> src/lib.rs:",
        "entry text, layer 0, op",
        "help:",
    ]);
}

#[test]
fn a_plugin_that_forgets_its_cache() {
    let (_folder, project) = scaffold("forgetful");
    edit(
        &project,
        "let y = g.attention(q, cache,",
        "let _ = cache;\n        let y = g.attention_local(q, k, v,",
    );
    verify(&project).says(&[
        "written and never read",
        "FAIL  numbers.decode-is-prefill",
        "error[numbers.decode-is-prefill]",
        "must come from a cache",
    ]);
}

#[test]
fn two_plugins_for_one_model_type() {
    let folder = tempfile::tempdir().unwrap();
    let mut projects = Vec::new();
    for name in ["first-claim", "second-claim"] {
        let (_scaffold, project) = scaffold(name);
        let path = project.join("plugin.toml");
        let manifest = std::fs::read_to_string(&path).unwrap();
        let model_type = format!("model_type = \"{}\"", name.replace('-', "_"));
        assert!(manifest.contains(&model_type));
        std::fs::write(&path, manifest.replace(&model_type, "model_type = \"contested\"")).unwrap();
        let built = cargo(&project, &["build", "--release"]);
        assert!(built.success, "{}", built.text);
        let installed = folder.path().join(name);
        std::fs::create_dir(&installed).unwrap();
        std::fs::copy(path, installed.join("plugin.toml")).unwrap();
        let library = library_name(name);
        std::fs::copy(target().join("release").join(&library), installed.join(&library)).unwrap();
        projects.push(installed);
    }
    let plugins = text(folder.path());
    let verified = metrale(&["plugins", "verify", text(&projects[1]), "--level", "0", "--plugins", plugins]);
    assert!(!verified.success);
    verified.says(&[
        "error[P0103]: 2 plugins describe `contested`",
        "first-claim",
        "second-claim",
        "--plugin contested=",
    ]);
}
