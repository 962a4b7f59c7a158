//! The text layer beside other implementations: ids of llama.cpp's tokenizers.
//!
//! These tests want files that `tests/parity/fetch.py vocab-suites tokenizers` lays in `.models/`, and are run by
//! `make test-models`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod tokenizer_suites;
