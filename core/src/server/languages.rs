//! Languages in requests: names become tokens, and a text what the model reads.

use super::backend::ServedModel;
use super::error::ApiError;
use super::fields::Fields;
use super::prompt::require_text;
use crate::translation::{AUTO, Language, Translation, UnknownLanguage};

/// The languages that a request names, and the names of the fields that do.
#[derive(Clone, Debug)]
pub(super) struct LanguageNames {
    source: Option<String>,
    target: Option<String>,
    params: (&'static str, &'static str),
}

/// A text as the model reads it.
#[derive(Clone, Debug)]
pub(super) struct Translatable {
    /// What the encoder reads.
    pub(super) source: Vec<u32>,
    /// What the target starts with.
    pub(super) start: Vec<u32>,
}

impl LanguageNames {
    /// `source_lang` and `target_lang` (or `src_lang`, `tgt_lang`), as OpenAI's endpoints take them.
    pub(super) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let (source, target) = (fields.string("source_lang")?, fields.string("target_lang")?);
        let (short_source, short_target) = (fields.string("src_lang")?, fields.string("tgt_lang")?);
        Ok(Self {
            source: source.or(short_source),
            target: target.or(short_target),
            params: ("source_lang", "target_lang"),
        })
    }

    /// `source` and `target`, as LibreTranslate has them.
    pub(super) fn read_libretranslate(fields: &mut Fields) -> Result<Self, ApiError> {
        let (source, target) = (fields.string("source")?, fields.string("target")?);
        Ok(Self { source, target, params: ("source", "target") })
    }

    /// The model's way to translate, if it has one.
    pub(super) fn translation<'m>(
        &self,
        model: &'m ServedModel,
    ) -> Result<Option<&'m Translation>, ApiError> {
        let named = [(self.params.0, &self.source), (self.params.1, &self.target)];
        match (model.translation.as_deref(), named.iter().find(|(_, name)| name.is_some())) {
            (Some(translation), _) => Ok(Some(translation)),
            (None, None) => Ok(None),
            (None, Some((param, _))) => {
                let message = format!("`{param}`: this model does not translate; leave it out");
                Err(ApiError::invalid(*param, message))
            }
        }
    }

    /// The language to translate to.
    pub(super) fn target<'t>(&self, translation: &'t Translation) -> Result<&'t Language, ApiError> {
        let param = self.params.1;
        match (&self.target, &translation.default_target) {
            (Some(name), _) => translation.languages.find(name).map_err(|error| unknown(param, &error)),
            (None, Some(language)) => Ok(language),
            (None, None) => {
                let message = format!(
                    "`{param}` is missing; send a language to translate to, or start the server with --tgt-lang"
                );
                Err(ApiError::invalid(param, message))
            }
        }
    }

    /// The language of a text, and how sure that is where it had to be found out.
    pub(super) fn source<'t>(
        &self,
        translation: &'t Translation,
        text: &str,
    ) -> Result<(&'t Language, Option<f64>), ApiError> {
        let param = self.params.0;
        match (self.source.as_deref(), &translation.default_source) {
            (Some(name), _) if name != AUTO => {
                let language = translation.languages.find(name).map_err(|error| unknown(param, &error))?;
                Ok((language, None))
            }
            (None, Some(language)) => Ok((language, None)),
            _ => {
                let found = translation.detector.detect(text).ok_or_else(|| {
                    let message =
                        format!("`{param}`: the language of the text could not be found out; name it");
                    ApiError::invalid(param, message)
                })?;
                Ok((found.language, Some(found.confidence)))
            }
        }
    }

    /// A text between the languages that are named, found out or set for the server.
    pub(super) fn encode(
        &self,
        model: &ServedModel,
        translation: &Translation,
        text: &str,
    ) -> Result<Translatable, ApiError> {
        let target = self.target(translation)?;
        let (source, _) = self.source(translation, text)?;
        encode(model, translation, text, (source, target))
    }
}

/// A text between two languages.
pub(super) fn encode(
    model: &ServedModel,
    translation: &Translation,
    text: &str,
    (source, target): (&Language, &Language),
) -> Result<Translatable, ApiError> {
    let tokens = require_text(model, "prompt")?.encode(text, false)?;
    Ok(Translatable { source: translation.source(&tokens, source), start: translation.target_start(target) })
}

fn unknown(param: &str, error: &UnknownLanguage) -> ApiError {
    ApiError::invalid(param, format!("`{param}`: {error}"))
}
