//! Vector instructions are compiled into the kernels. A closure or an outlined function that lacks the features of its
//! instruction-set level turns each of them into a call, and a kernel into something ten times slower with correct results.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use std::path::Path;

use object::{Object, ObjectSymbol};

#[test]
fn no_vector_instruction_of_the_release_binary_is_a_call() {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(target).join("release/metrale");
    let Ok(bytes) = std::fs::read(&binary) else {
        eprintln!("!!! SKIPPED: {} does not exist; `make build` makes it !!!", binary.display());
        return;
    };
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let names: Vec<&str> = file.symbols().filter_map(|s| s.name().ok()).collect();
    assert!(names.iter().any(|n| n.contains("metrale_kernels")), "the binary has no symbols to look at");
    let calls: Vec<&&str> = names.iter().filter(|n| n.contains("core_arch") && n.contains("_mm")).collect();
    assert!(calls.is_empty(), "functions that should be single instructions: {calls:#?}");
}
