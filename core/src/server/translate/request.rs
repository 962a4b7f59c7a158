//! `POST /translate`: texts in, translations out.

use std::time::Instant;

use serde_json::{Map, Value, json};

use super::{language_value, require_translation};
use crate::sched::BeamParams;
use crate::server::app::App;
use crate::server::backend::ServedModel;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, mismatch, string};
use crate::server::generation::Delta;
use crate::server::languages::{LanguageNames, encode};
use crate::server::prompt::{Lengths, Prompt};
use crate::server::request::{Common, Envelope, Job, note_unknown};
use crate::server::sampling::count;
use crate::translation::{Language, Piece, Translation, split_sentences};

/// Texts of one request, each with what becomes of it.
pub(super) struct TranslateRequest {
    /// One prompt per sentence or text; its choices are the alternatives.
    pub(super) job: Job,
    texts: Vec<Text>,
    is_list: bool,
    wants_alternatives: bool,
}

struct Text {
    parts: Vec<Part>,
    /// Code and confidence, where the language was found out.
    detected: Option<(String, f64)>,
}

/// A text's translation is its parts, in order.
enum Part {
    /// Copied.
    Space(String),
    /// The answers to this prompt.
    Prompt(usize),
}

impl TranslateRequest {
    pub(super) fn read(
        mut fields: Fields,
        app: &App,
        model: &ServedModel,
        request_id: &str,
        arrival: Instant,
    ) -> Result<Self, ApiError> {
        let translation = require_translation(model)?;
        let (texts, is_list) = texts(&mut fields)?;
        let names = LanguageNames::read_libretranslate(&mut fields)?;
        let target = names.target(translation)?;
        format(&mut fields)?;
        let splits = fields.boolean("split_sentences")?.unwrap_or(false);
        let alternatives = count(&mut fields, "alternatives", 0)?.unwrap_or(0);
        let common = common(&mut fields, app, model, alternatives)?;
        let lengths = Lengths::read(&mut fields, model, 1, usize::MAX)?;
        fields.ignore(&["model"]);
        note_unknown(&fields);

        let mut reader = Reader { model, translation, lengths, target, splits, prompts: Vec::new() };
        let texts = texts.iter().map(|text| reader.text(text, &names)).collect::<Result<_, _>>()?;
        let envelope = Envelope::new("translate", request_id, app.match_name(None)?);
        let job = Job { envelope, prompts: reader.prompts, common, arrival }.check()?;
        Ok(Self { job, texts, is_list, wants_alternatives: alternatives > 0 })
    }

    /// LibreTranslate's answer; `deltas` are all choices of the job.
    pub(super) fn answer(&self, deltas: &[Delta]) -> Value {
        let mut answer = Map::new();
        let mut put = |name: &str, mut values: Vec<Value>| {
            let value = if self.is_list { Value::Array(values) } else { values.pop().unwrap_or_default() };
            answer.insert(name.to_owned(), value);
        };
        put("translatedText", self.texts.iter().map(|text| json!(self.written(text, deltas, 0))).collect());
        if self.wants_alternatives {
            let others = |text: &Text| -> Value {
                (1..self.job.common.n).map(|i| json!(self.written(text, deltas, i))).collect()
            };
            put("alternatives", self.texts.iter().map(others).collect());
        }
        if self.texts.iter().any(|text| text.detected.is_some()) {
            let found = |text: &Text| {
                text.detected.as_ref().map_or(Value::Null, |(code, sure)| language_value(code, *sure))
            };
            put("detectedLanguage", self.texts.iter().map(found).collect());
        }
        Value::Object(answer)
    }

    /// One alternative of a text's translation.
    fn written(&self, text: &Text, deltas: &[Delta], alternative: usize) -> String {
        let mut written = String::new();
        for part in &text.parts {
            match part {
                Part::Space(space) => written.push_str(space),
                Part::Prompt(prompt) => {
                    // Scripts without spaces between sentences meet scripts with them.
                    if written.ends_with(|c: char| !c.is_whitespace() && !"。！？".contains(c)) {
                        written.push(' ');
                    }
                    let choice = prompt * self.job.common.n + alternative;
                    written.push_str(deltas.get(choice).map_or("", |delta| delta.text.trim()));
                }
            }
        }
        written
    }
}

struct Reader<'a> {
    model: &'a ServedModel,
    translation: &'a Translation,
    lengths: Lengths,
    target: &'a Language,
    splits: bool,
    prompts: Vec<Prompt>,
}

impl Reader<'_> {
    fn text(&mut self, text: &str, names: &LanguageNames) -> Result<Text, ApiError> {
        if text.trim().is_empty() {
            return Ok(Text { parts: vec![Part::Space(text.to_owned())], detected: None });
        }
        let (source, confidence) = names.source(self.translation, text)?;
        let parts = if self.splits {
            split_sentences(text)
                .map(|piece| match piece {
                    Piece::Space(space) => Ok(Part::Space(space.to_owned())),
                    Piece::Sentence(sentence) => self.prompt(sentence, source),
                })
                .collect::<Result<_, _>>()?
        } else {
            vec![self.prompt(text, source)?]
        };
        Ok(Text { parts, detected: confidence.map(|confidence| (source.code.clone(), confidence)) })
    }

    fn prompt(&mut self, text: &str, source: &Language) -> Result<Part, ApiError> {
        let translatable = encode(self.model, self.translation, text, (source, self.target))?;
        self.prompts.push(self.lengths.fit_translation(translatable, self.model)?);
        Ok(Part::Prompt(self.prompts.len() - 1))
    }
}

/// `q`: a text or a list of texts.
pub(super) fn texts(fields: &mut Fields) -> Result<(Vec<String>, bool), ApiError> {
    match fields.take("q") {
        None => Err(ApiError::invalid("q", "`q` is missing; send a text or a list of texts")),
        Some(Value::String(text)) => Ok((vec![text], false)),
        Some(Value::Array(items)) => {
            let text = |(i, item)| string(&format!("q[{i}]"), item);
            Ok((items.into_iter().enumerate().map(text).collect::<Result<_, _>>()?, true))
        }
        Some(other) => Err(mismatch("q", "a string or an array of strings", &other)),
    }
}

fn format(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.string("format")?.as_deref() {
        None | Some("text") => Ok(()),
        Some(other) => {
            let note = format!("only the format `text` is, found `{other}`; send the text without markup");
            Err(ApiError::unsupported("format", &note))
        }
    }
}

/// The fields of generation. Alternatives are the best hypotheses of a beam search.
fn common(
    fields: &mut Fields,
    app: &App,
    model: &ServedModel,
    alternatives: usize,
) -> Result<Common, ApiError> {
    let mut common = Common::read(fields, model, app.options.max_logprobs)?;
    for (param, is_set) in [("n", common.n > 1), ("stream", common.stream.is_some())] {
        if is_set {
            let message = format!(
                "`{param}` has no place in a translation; use /v1/chat/completions, or `alternatives`"
            );
            return Err(ApiError::invalid(param, message));
        }
    }
    common.n = alternatives.saturating_add(1);
    if alternatives > 0 {
        let beams = common.beams.unwrap_or_else(|| BeamParams::new(1));
        let num_beams = beams.num_beams.max(common.n);
        common.beams = Some(BeamParams { num_beams, num_return: common.n, ..beams });
    }
    Ok(common)
}
