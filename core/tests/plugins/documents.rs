//! The documents about plugins say what the program does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::workshop::{ROOT, cargo, metrale, scaffold, text};

const UPDATE: &str = "METRALE_UPDATE_DOCS";

fn document(name: &str) -> PathBuf {
    Path::new(ROOT).join("docs").join(name)
}

/// Puts the files of a new scaffold behind their markers.
fn with_scaffold(document: &str, project: &Path) -> String {
    let mut parts = document.split("<!-- scaffold: ");
    let mut out = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (path, rest) = part.split_once(" -->\n").unwrap();
        let old = rest.strip_prefix("\n```").and_then(|r| r.split_once("\n```\n"));
        let rest = old.map_or(rest, |(_, after)| after);
        let source = std::fs::read_to_string(project.join(path)).unwrap();
        let language = if Path::new(path).extension().is_some_and(|e| e == "rs") { "rust" } else { "toml" };
        out.extend([
            "<!-- scaffold: ",
            path,
            " -->\n\n```",
            language,
            "\n",
            source.trim_end(),
            "\n```\n",
            rest,
        ]);
    }
    out
}

/// The tutorial shows the files that `metrale plugins new my-model` writes, which `scaffold.rs` compiles and verifies.
#[test]
fn the_tutorial_shows_the_scaffold() {
    let (_folder, project) = scaffold("my-model");
    let path = document("writing-a-plugin.md");
    let tutorial = std::fs::read_to_string(&path).unwrap();
    let expected = with_scaffold(&tutorial, &project);
    assert_eq!(tutorial.matches("<!-- scaffold: ").count(), 4);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, expected).unwrap();
        return;
    }
    assert!(tutorial == expected, "docs/writing-a-plugin.md shows another scaffold; run with {UPDATE}=1");
}

#[test]
fn the_tutorial_lists_every_check() {
    let (_folder, project) = scaffold("every-check");
    let built = cargo(&project, &["build", "--release"]);
    assert!(built.success, "{}", built.text);
    let verified = metrale(&["plugins", "verify", text(&project), "--json"]);
    let lines: Vec<serde_json::Value> = serde_json::from_str(&verified.text).unwrap();
    let ran: BTreeSet<_> = lines.iter().filter_map(|l| l["id"].as_str()).map(str::to_owned).collect();
    let tutorial = std::fs::read_to_string(document("writing-a-plugin.md")).unwrap();
    let rows = tutorial.lines().filter_map(|l| l.strip_prefix("| ")?.split(" | ").nth(1)?.strip_prefix('`'));
    let listed: BTreeSet<_> = rows
        .filter_map(|cell| cell.strip_suffix('`'))
        .filter(|id| ["package.", "boundary.", "trace.", "numbers."].iter().any(|p| id.starts_with(p)))
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, ran);
}

#[test]
fn every_code_is_documented() {
    let codes = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let is_code =
            |w: &&str| w.len() == 5 && w.starts_with('P') && w[1..].bytes().all(|b| b.is_ascii_digit());
        words.filter(is_code).map(str::to_owned).collect()
    };
    let source = std::fs::read_to_string(Path::new(ROOT).join("core/src/plugin/error/words.rs")).unwrap();
    let mut used = codes(&source);
    // Of building a model.
    used.extend(["P0305".to_owned(), "P0403".to_owned()]);
    assert!(used.len() > 20, "{used:?}");
    assert_eq!(codes(&std::fs::read_to_string(document("compatibility.md")).unwrap()), used);
}
