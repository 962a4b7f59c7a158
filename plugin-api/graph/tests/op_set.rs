//! The op set as a document.

use metrale_graph::doc::op_set_markdown;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/op-set.md");

/// With `METRALE_UPDATE_DOCS=1` the document is written instead of compared.
#[test]
fn document_equals_the_schema() {
    let generated = op_set_markdown();
    if std::env::var_os("METRALE_UPDATE_DOCS").is_some() {
        std::fs::write(DOCUMENT, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(DOCUMENT).unwrap_or_default();
    assert!(
        committed == generated,
        "plugin-api/docs/op-set.md differs from the schema; run METRALE_UPDATE_DOCS=1 cargo test -p metrale-graph --test op_set"
    );
}
