//! The languages of a model.

use std::collections::HashSet;

use super::codes;
use crate::text::Tokenizer;

/// Nearest languages that an error names.
const NUM_NEAREST: usize = 3;

/// Codes of clients that are not, or no longer, in ISO 639-1.
const OTHER_NAMES: &[(&str, &str)] =
    &[("in", "id"), ("iw", "he"), ("no", "nb"), ("pb", "pt"), ("zt", "zh_hant")];

/// A language that a model reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Language {
    /// What clients call it: ISO 639-1, with the script where that is not the language's first; else the model's code.
    pub code: String,
    /// The model's code, such as `eng_Latn`.
    pub model_code: String,
    /// English name.
    pub name: String,
    /// The token that stands for it.
    pub token: u32,
}

impl Language {
    /// ISO 639 code of two or three letters.
    pub(super) fn base(&self) -> &str {
        split(&self.model_code).0
    }

    fn script(&self) -> Option<&str> {
        split(&self.model_code).1
    }
}

/// `eng_Latn` to language and script.
fn split(code: &str) -> (&str, Option<&str>) {
    code.split_once('_').map_or((code, None), |(base, script)| (base, Some(script)))
}

/// A name that none of the model's languages has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the language `{name}` is none of this model's {num_languages}; near it: {}; GET /languages lists all", near.join(", "))]
pub struct UnknownLanguage {
    /// As it was given.
    pub name: String,
    /// Codes and names that could be meant.
    pub near: Vec<String>,
    /// Languages that the model has.
    pub num_languages: usize,
}

/// All languages of a model, in order of their tokens.
#[derive(Clone, Debug, Default)]
pub struct Languages(Vec<Language>);

impl Languages {
    /// Languages that are tokens: those that are named, or else special tokens that look like one.
    pub(super) fn of(tokenizer: &Tokenizer, named: &[String]) -> Self {
        let mut found: Vec<(u32, String)> =
            named.iter().filter_map(|name| Some((tokenizer.token_to_id(name)?, name.clone()))).collect();
        if found.is_empty() {
            let special = tokenizer.special_tokens();
            found = special.filter_map(|(id, token)| Some((id, language_of(token)?.to_owned()))).collect();
        }
        found.sort_unstable();
        Self::new(found)
    }

    fn new(found: Vec<(u32, String)>) -> Self {
        let mut taken = HashSet::new();
        let language = |(token, model_code): (u32, String)| {
            let (base, script) = split(&model_code);
            let (short, mut name) = (codes::two_letters(base), codes::name(base));
            let is_first = taken.insert(short.unwrap_or(base).to_owned());
            if let (false, Some(script)) = (is_first, script) {
                name = format!("{name} ({})", codes::script_name(script));
            }
            let code = match (short, script) {
                (Some(short), _) if is_first => short.to_owned(),
                (Some(short), Some(script)) => format!("{short}-{script}"),
                _ => model_code.clone(),
            };
            Language { code, model_code, name, token }
        };
        let mut languages: Vec<Language> = found.into_iter().map(language).collect();
        // Dialects can share code and script: then the model's code tells them apart.
        let mut codes = HashSet::new();
        for language in &mut languages {
            if !codes.insert(language.code.clone()) {
                language.code.clone_from(&language.model_code);
            }
        }
        Self(languages)
    }

    /// Every language.
    pub fn iter(&self) -> impl Iterator<Item = &Language> {
        self.0.iter()
    }

    /// Number of languages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A language by the model's code, by ISO 639-1 or -3, with or without script or region, or by English name.
    ///
    /// # Errors
    /// The model has no such language.
    pub fn find(&self, name: &str) -> Result<&Language, UnknownLanguage> {
        let wanted = name.trim().replace('-', "_").to_lowercase();
        let other =
            OTHER_NAMES.iter().find(|(other, _)| *other == wanted).map(|(_, code)| (*code).to_owned());
        let wanted = other.unwrap_or(wanted);
        let is = |code: &str| code.replace('-', "_").to_lowercase() == wanted;
        let (base, subtag) = split(&wanted);
        let short_base = codes::two_letters(base);
        let is_base = |l: &Language| {
            l.base() == base || (short_base.is_some() && codes::two_letters(l.base()) == short_base)
        };
        let with_script = |l: &Language| {
            let script = l.script().map(str::to_lowercase);
            script.as_deref() == subtag && subtag.is_some() && is_base(l)
        };
        // A region says nothing here; a script that the language does not have would be another language.
        let without_script = |l: &Language| subtag.is_none_or(|s| s.len() <= 3) && is_base(l);
        let found = self.0.iter().find(|l| is(&l.model_code) || is(&l.code));
        let found = found.or_else(|| self.0.iter().find(|l| with_script(l)));
        let found = found.or_else(|| self.0.iter().find(|l| without_script(l)));
        let found = found.or_else(|| self.0.iter().find(|l| l.name.to_lowercase() == wanted));
        found.ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> UnknownLanguage {
        let wanted: String = name.trim().to_lowercase().chars().take(64).collect();
        let similarity = |l: &Language| {
            let names = [l.code.to_lowercase(), l.model_code.to_lowercase(), l.name.to_lowercase()];
            names.iter().map(|n| strsim::jaro_winkler(n, &wanted)).fold(0.0, f64::max)
        };
        let mut ranked: Vec<(f64, &Language)> = self.0.iter().map(|l| (similarity(l), l)).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let near = ranked.iter().take(NUM_NEAREST).map(|(_, l)| format!("`{}` ({})", l.code, l.name));
        UnknownLanguage { name: wanted, near: near.collect(), num_languages: self.0.len() }
    }
}

/// The language that a token names: `eng_Latn`, or `__en__`.
fn language_of(token: &str) -> Option<&str> {
    let letters = |text: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase())
    };
    if let Some(code) = token.strip_prefix("__").and_then(|rest| rest.strip_suffix("__")) {
        return letters(code, 2..=3).then_some(code);
    }
    let (base, script) = token.split_once('_')?;
    let is_script = script.len() == 4
        && script.starts_with(|c: char| c.is_ascii_uppercase())
        && letters(&script[1..], 3..=3);
    (letters(base, 3..=3) && is_script).then_some(token)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::translation) fn some() -> Languages {
        let codes = [
            "arb_Arab", "eng_Latn", "fra_Latn", "kas_Arab", "kas_Deva", "ace_Latn", "spa_Latn", "zho_Hans",
            "zho_Hant",
        ];
        Languages::new((10..).zip(codes.map(str::to_owned)).collect())
    }

    #[test]
    fn every_language_has_a_code_of_its_own() {
        let languages = some();
        let codes: Vec<_> = languages.iter().map(|l| l.code.as_str()).collect();
        assert_eq!(codes, ["ar", "en", "fr", "ks", "ks-Deva", "ace_Latn", "es", "zh", "zh-Hant"]);
        assert_eq!(languages.find("zh-Hant").unwrap().name, "Chinese (Traditional)");
    }

    #[test]
    fn a_language_is_found_by_all_its_names() {
        for (name, token) in [
            ("en", 11),
            ("EN", 11),
            ("eng", 11),
            ("eng_Latn", 11),
            ("en-US", 11),
            ("English", 11),
            ("ara", 10),
            ("ks-Deva", 14),
            ("kas_Arab", 13),
            ("zh-Hans", 17),
            ("zt", 18),
            (" es ", 16),
        ] {
            assert_eq!(some().find(name).unwrap().token, token, "{name}");
        }
    }

    #[test]
    fn an_unknown_language_is_answered_with_near_ones() {
        let error = some().find("spanisch").unwrap_err();
        assert_eq!(error.near[0], "`es` (Spanish)");
        assert!(some().find("eng_Cyrl").is_err(), "another script is another language");
        assert!(some().find("").is_err());
        assert!(error.to_string().contains("GET /languages"), "{error}");
    }

    #[test]
    fn tokens_that_look_like_languages_are_known() {
        assert_eq!(language_of("eng_Latn"), Some("eng_Latn"));
        assert_eq!(language_of("__en__"), Some("en"));
        for other in ["</s>", "<mask>", "a_b", "eng_latn", "____", "eng_Latin", "ÄÖÜ_Latn"] {
            assert_eq!(language_of(other), None, "{other}");
        }
    }
}
