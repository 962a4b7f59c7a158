//! Vocabularies with test vectors (`ggml-vocab-NAME.gguf`, `.inp`, `.out`, from llama.cpp) through both forms of a
//! tokenizer: GGUF metadata and tokenizer.json.

use std::fs;
use std::path::{Path, PathBuf};

use metrale_core::text::{GgufVocab, Tokenizer};
use metrale_graph::checkpoint::gguf;

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.models")
}

fn suite_file(name: &str, suffix: &str) -> PathBuf {
    models().join("vocab-suites").join(format!("ggml-vocab-{name}.gguf{suffix}"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| {
        panic!("{}: {error}; fetch it: python3 tests/parity/fetch.py vocab-suites tokenizers", path.display())
    })
}

/// The texts of a suite and the ids that llama.cpp gives them.
fn cases(name: &str) -> Vec<(String, Vec<u32>)> {
    let texts = read(&suite_file(name, ".inp"));
    let ids = read(&suite_file(name, ".out"));
    let ids = ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect());
    let texts = texts.split(SEPARATOR).map(str::to_owned);
    let cases: Vec<_> = texts.zip(ids).collect();
    assert!(cases.len() >= 46, "{name}: only {} cases", cases.len());
    cases
}

fn gguf_tokenizer(name: &str) -> Tokenizer {
    let path = suite_file(name, "");
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = gguf::parse(&bytes).unwrap();
    Tokenizer::from_gguf(&GgufVocab::from_metadata(&file.metadata).unwrap()).unwrap()
}

fn check(name: &str, tokenizer: &Tokenizer) {
    let mut wrong = Vec::new();
    let mut cases = cases(name);
    if name == "qwen35" {
        // The model's tokenizer.json normalises to NFC, llama.cpp does not.
        cases.retain(|(text, _)| !text.contains(['\u{300}', '\u{301}']));
    }
    for (text, expected) in &cases {
        let found = tokenizer.encode(text, false).unwrap();
        if found != *expected {
            wrong.push(format!("{text:?}\n  expected {expected:?}\n  found    {found:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{name}: {} of {} cases differ\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

macro_rules! gguf_suites {
    ($($test:ident: $name:literal,)*) => {$(
        #[test]
        #[ignore = "wants downloads: make test-models"]
        fn $test() {
            check($name, &gguf_tokenizer($name));
        }
    )*};
}

gguf_suites! {
    gguf_gpt2: "gpt-2",
    gguf_qwen2: "qwen2",
    gguf_qwen35: "qwen35",
    gguf_llama_bpe: "llama-bpe",
    gguf_llama_spm: "llama-spm",
    gguf_phi3: "phi-3",
    gguf_deepseek_llm: "deepseek-llm",
    gguf_deepseek_coder: "deepseek-coder",
    gguf_falcon: "falcon",
    gguf_mpt: "mpt",
    gguf_starcoder: "starcoder",
    gguf_refact: "refact",
    gguf_command_r: "command-r",
}

macro_rules! huggingface_suites {
    ($($test:ident: $suite:literal from $directory:literal,)*) => {$(
        #[test]
        #[ignore = "wants downloads: make test-models"]
        fn $test() {
            check($suite, &Tokenizer::from_dir(&models().join("tokenizers").join($directory)).unwrap());
        }
    )*};
}

huggingface_suites! {
    huggingface_qwen2: "qwen2" from "qwen-2.5",
    huggingface_llama_bpe: "llama-bpe" from "deepseek-r1-distill-llama-8b",
    huggingface_deepseek_llm: "deepseek-llm" from "deepseek-llm-7b-base",
    huggingface_deepseek_coder: "deepseek-coder" from "deepseek-coder-33b-base",
}
