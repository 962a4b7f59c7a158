//! Translation: languages and their tokens, how a source and the start of its target are written, which language a text
//! is in, and where its sentences end.
//!
//! What a model needs is stated by its plugin (`translation.*` in `info/1`); languages are tokens of its tokenizer.

mod codes;
mod detect;
mod languages;
mod sentences;

use metrale_graph::Attrs;

pub use detect::{Detected, Detector};
pub use languages::{Language, Languages, UnknownLanguage};
pub use sentences::{Piece, split_sentences};

use crate::text::Tokenizer;

/// The request's or the operator's word for "find out yourself".
pub const AUTO: &str = "auto";

/// How a model is asked for translations.
#[derive(Debug)]
pub struct Translation {
    /// What it translates between.
    pub languages: Languages,
    /// Finds the language of a text.
    pub detector: Detector,
    /// Source language of requests that name none.
    pub default_source: Option<Language>,
    /// Target language of requests that name none.
    pub default_target: Option<Language>,
    /// Beams of requests that do not say.
    pub default_num_beams: usize,
    source: Vec<Part>,
    target: Vec<Part>,
}

/// A piece of what the model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Token(u32),
    SourceLanguage,
    TargetLanguage,
    Text,
}

/// Why a model's facts about translation cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslationError {
    /// A piece of a format is no token.
    #[error(
        "the plugin's `{format}` asks for the token `{token}`, which the tokenizer does not have; use the tokenizer of this model"
    )]
    NoSuchToken {
        /// The fact.
        format: &'static str,
        /// The token.
        token: String,
    },
    /// No language of the model has a token.
    #[error("the tokenizer has no language tokens; use the tokenizer of this model")]
    NoLanguages,
}

const SOURCE_FORMAT: &str = "translation.source_format";
const FORCED_FIRST: &str = "translation.forced_first_token";
const LANGUAGES: &str = "translation.languages";
const DECODER_START: &str = "decoder_start_token_id";

impl Translation {
    /// What the plugin's facts and the tokenizer say; nothing for a model that does not translate.
    ///
    /// # Errors
    /// They do not fit together.
    pub fn new(info: &Attrs, tokenizer: &Tokenizer) -> Result<Option<Self>, TranslationError> {
        let Some(format) = info.str(SOURCE_FORMAT) else { return Ok(None) };
        let source = parse(SOURCE_FORMAT, format, tokenizer)?;
        let mut target: Vec<Part> = info
            .int(DECODER_START)
            .and_then(|id| u32::try_from(id).ok())
            .map(Part::Token)
            .into_iter()
            .collect();
        target.extend(parse(FORCED_FIRST, info.str(FORCED_FIRST).unwrap_or_default(), tokenizer)?);
        let languages = Languages::of(tokenizer, info.strs(LANGUAGES).unwrap_or_default());
        if languages.is_empty() {
            return Err(TranslationError::NoLanguages);
        }
        Ok(Some(Self {
            detector: Detector::new(&languages),
            languages,
            default_source: None,
            default_target: None,
            default_num_beams: 1,
            source,
            target,
        }))
    }

    /// With the source's language after its text and end, as checkpoints ask for that were trained with it there.
    #[must_use]
    pub fn with_trailing_source_language(mut self) -> Self {
        self.source.retain(|part| *part != Part::SourceLanguage);
        self.source.push(Part::SourceLanguage);
        self
    }

    /// The tokens that the encoder reads, from those of a text.
    #[must_use]
    pub fn source(&self, text: &[u32], language: &Language) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(text.len() + self.source.len());
        for part in &self.source {
            match part {
                Part::Token(token) => tokens.push(*token),
                Part::SourceLanguage | Part::TargetLanguage => tokens.push(language.token),
                Part::Text => tokens.extend_from_slice(text),
            }
        }
        tokens
    }

    /// How the target starts: what the decoder is given before it chooses anything.
    #[must_use]
    pub fn target_start(&self, language: &Language) -> Vec<u32> {
        let token = |part: &Part| match part {
            Part::Token(token) => Some(*token),
            Part::SourceLanguage | Part::TargetLanguage => Some(language.token),
            Part::Text => None,
        };
        self.target.iter().filter_map(token).collect()
    }
}

/// `{source_language}{text}</s>`: placeholders in braces, tokens as the vocabulary writes them.
fn parse(name: &'static str, format: &str, tokenizer: &Tokenizer) -> Result<Vec<Part>, TranslationError> {
    let token = |text: &str| match tokenizer.token_to_id(text) {
        Some(id) => Ok(Part::Token(id)),
        None => Err(TranslationError::NoSuchToken { format: name, token: text.to_owned() }),
    };
    let mut parts = Vec::new();
    let mut rest = format;
    while !rest.is_empty() {
        let placeholders = [
            ("{source_language}", Part::SourceLanguage),
            ("{target_language}", Part::TargetLanguage),
            ("{text}", Part::Text),
        ];
        let found =
            placeholders.iter().find_map(|(written, part)| Some((rest.strip_prefix(written)?, *part)));
        if let Some((after, part)) = found {
            parts.push(part);
            rest = after;
        } else {
            let end = rest.char_indices().skip(1).find(|(_, c)| *c == '{').map_or(rest.len(), |(at, _)| at);
            parts.push(token(&rest[..end])?);
            rest = &rest[end..];
        }
    }
    Ok(parts)
}
