//! What can go wrong between a model directory and a prompt, split by who can fix it.
//!
//! Load errors name a file and what to change in it; request errors ([`TextError::is_request_error`]) become an
//! HTTP 400 with their text.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::EngineError;

/// An error of the text layer.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file is missing or unreadable.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why the operating system refused.
        source: std::io::Error,
    },
    /// A file that must be text is not.
    #[error("{path} is not valid UTF-8: the first bad byte is at offset {offset}")]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Byte offset of the first invalid sequence.
        offset: usize,
    },
    /// A file is not JSON.
    #[error("{path} is not valid JSON: line {line}, column {column}: {message}")]
    Json {
        /// The file.
        path: PathBuf,
        /// 1-based line.
        line: usize,
        /// 1-based column.
        column: usize,
        /// What the parser expected.
        message: String,
    },
    /// A JSON value has the wrong type.
    #[error("{origin}: `{key}` must be {expected}, found {found}")]
    WrongType {
        /// File or flag that holds the value.
        origin: String,
        /// Path of the value inside it.
        key: String,
        /// The accepted type.
        expected: &'static str,
        /// The value, shortened.
        found: String,
    },
    /// The tokenizer description is inconsistent or not supported.
    #[error("{origin}: {message}")]
    Tokenizer {
        /// File or metadata that describes the tokenizer.
        origin: String,
        /// What is wrong and what is accepted.
        message: String,
    },
    /// A GGUF vocabulary names a split rule that is not known.
    #[error(
        "unknown pre-tokenizer `{pre}` (GGUF key tokenizer.ggml.pre); known: {known}. \
             Serve the model with the tokenizer.json it was converted from instead"
    )]
    UnknownPreTokenizer {
        /// The name found.
        pre: String,
        /// Comma-separated known names.
        known: String,
    },
    /// The tokenizer produces ids that the model has no embedding for.
    #[error(
        "the tokenizer's vocabulary reaches id {max_token_id} ({token:?}), the model's vocab_size is {vocab_size}: \
             this tokenizer does not belong to this model"
    )]
    VocabMismatch {
        /// Largest id of the tokenizer's base vocabulary.
        max_token_id: u32,
        /// The token that has it.
        token: String,
        /// Rows of the model's embedding.
        vocab_size: usize,
    },
    /// A chat template does not compile.
    #[error("chat template {origin}, line {line}, column {column}: {message}")]
    TemplateSyntax {
        /// File or key that holds the template.
        origin: String,
        /// 1-based line.
        line: usize,
        /// 1-based column.
        column: usize,
        /// What the parser found.
        message: String,
    },
    /// A chat template failed on these messages.
    #[error("the chat template cannot render this conversation: {message}{}", .line.map(|line| format!(" (template line {line})")).unwrap_or_default())]
    Render {
        /// What failed.
        message: String,
        /// 1-based template line, where known.
        line: Option<usize>,
    },
    /// The template itself refused the conversation through `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// A message, tool or template argument is malformed.
    #[error("{message}")]
    InvalidMessage {
        /// What is wrong, expected and found.
        message: String,
        /// The request field, such as `messages[2].tool_calls[0]`.
        param: String,
    },
    /// Text was sent to a model that has no tokenizer.
    #[error(
        "this model was loaded without a tokenizer and serves token ids only: send {wanted} as a list of token ids \
             instead of text, or put tokenizer.json into the model directory"
    )]
    NoTokenizer {
        /// The request field that held text.
        wanted: &'static str,
    },
    /// Messages were sent to a model that has no chat template.
    #[error(
        "this model has no chat template: use the completions endpoint, or start the server with --chat-template FILE"
    )]
    NoChatTemplate,
    /// The text contains a token that the model has no embedding for.
    #[error(
        "the text contains the token {token:?} (id {id}), which this model does not have (vocab_size {vocab_size})"
    )]
    TokenOutOfRange {
        /// The token.
        token: String,
        /// Its id.
        id: u32,
        /// Rows of the model's embedding.
        vocab_size: usize,
    },
    /// A stop string is empty.
    #[error("`stop` must not contain an empty string")]
    EmptyStopString,
}

impl TextError {
    /// Whether a client can correct this by sending another request.
    #[must_use]
    pub fn is_request_error(&self) -> bool {
        matches!(
            self,
            Self::Render { .. }
                | Self::Raised(_)
                | Self::InvalidMessage { .. }
                | Self::NoTokenizer { .. }
                | Self::NoChatTemplate
                | Self::TokenOutOfRange { .. }
                | Self::EmptyStopString
        )
    }

    /// The request field at fault, where one is.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::InvalidMessage { param, .. } => Some(param),
            Self::Render { .. } | Self::Raised(_) | Self::NoChatTemplate => Some("messages"),
            Self::NoTokenizer { wanted } => Some(wanted),
            Self::EmptyStopString => Some("stop"),
            _ => None,
        }
    }
}

impl From<TextError> for EngineError {
    fn from(error: TextError) -> Self {
        if error.is_request_error() {
            Self::InvalidRequest { message: error.to_string(), param: error.param().map(str::to_owned) }
        } else {
            Self::Internal(error.to_string())
        }
    }
}

/// Reads a text file.
pub(super) fn read_text(path: &Path) -> Result<String, TextError> {
    let bytes = std::fs::read(path).map_err(|source| TextError::Read { path: path.to_owned(), source })?;
    String::from_utf8(bytes).map_err(|error| TextError::NotUtf8 {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })
}

/// Reads a text file that may be missing; every other failure is an error.
pub(super) fn read_optional_text(path: &Path) -> Result<Option<String>, TextError> {
    match read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(TextError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses `text`, the contents of `path`, as JSON.
pub(super) fn parse_json(path: &Path, text: &str) -> Result<Value, TextError> {
    serde_json::from_str(text).map_err(|error| TextError::Json {
        path: path.to_owned(),
        line: error.line(),
        column: error.column(),
        message: error.to_string(),
    })
}

/// The error for a JSON value of the wrong type.
pub(super) fn wrong_type(
    origin: impl ToString,
    key: &str,
    expected: &'static str,
    found: &Value,
) -> TextError {
    let mut found = found.to_string();
    if let Some((cut, _)) = found.char_indices().nth(60) {
        found.truncate(cut);
        found.push('…');
    }
    TextError::WrongType { origin: origin.to_string(), key: key.to_owned(), expected, found }
}
