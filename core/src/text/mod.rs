//! Text in, text out: tokenizers, chat templates, detokenisation, stop strings, generation defaults.
//!
//! [`TextModel`] is what the server holds for a loaded model; the parts it is made of stand alone. Nothing here
//! knows a model family: tokenizer.json, GGUF metadata and the Jinja template decide. All of it is `Send + Sync`
//! and immutable after loading, except the two per-request stream states, [`IncrementalDetokenizer`] and
//! [`StopMatcher`].

pub mod chat_template;
pub mod detokenizer;
mod error;
pub mod generation_config;
mod model;
pub mod stop;
pub mod tokenizer;

pub use chat_template::{ChatPrompt, ChatTemplate};
pub use detokenizer::IncrementalDetokenizer;
pub use error::TextError;
pub use generation_config::{GenerationConfig, GenerationConfigSource};
pub use model::{TextModel, TextOptions};
pub use stop::{StopMatcher, StopOutput};
pub use tokenizer::{GgufVocab, Tokenizer};
