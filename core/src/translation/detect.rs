//! Which of a model's languages a text is in.

use whatlang::Lang;

use super::codes;
use super::languages::{Language, Languages};

/// Finds the language of texts among those that a model has and the detector knows.
#[derive(Debug)]
pub struct Detector {
    detector: whatlang::Detector,
    known: Vec<(Lang, Language)>,
}

/// A language and how sure that is.
#[derive(Clone, Debug, PartialEq)]
pub struct Detected<'a> {
    /// The language.
    pub language: &'a Language,
    /// 0 to 1.
    pub confidence: f64,
}

impl Detector {
    pub(super) fn new(languages: &Languages) -> Self {
        let known: Vec<(Lang, Language)> = Lang::all()
            .iter()
            .filter_map(|&lang| {
                let code = lang.code();
                let short = codes::two_letters(code);
                let is_same = |l: &&Language| {
                    l.base() == code || (short.is_some() && codes::two_letters(l.base()) == short)
                };
                Some((lang, languages.iter().find(is_same)?.clone()))
            })
            .collect();
        let allowed = known.iter().map(|(lang, _)| *lang).collect();
        Self { detector: whatlang::Detector::with_allowlist(allowed), known }
    }

    /// The language of a text; nothing if it is too short or in none of the languages.
    #[must_use]
    pub fn detect(&self, text: &str) -> Option<Detected<'_>> {
        let found = self.detector.detect(text)?;
        let (_, language) = self.known.iter().find(|(lang, _)| *lang == found.lang())?;
        Some(Detected { language, confidence: found.confidence() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::languages::tests::some;
    use super::*;

    #[test]
    fn texts_of_the_models_languages_are_told_apart() {
        let detector = Detector::new(&some());
        for (text, code) in [
            ("The king sent messengers to the city in the morning.", "en"),
            ("El rey envió mensajeros a la ciudad por la mañana.", "es"),
            ("Le roi envoya des messagers dans la ville au matin.", "fr"),
            ("国王派使者到城里去。", "zh"),
        ] {
            assert_eq!(detector.detect(text).map(|d| d.language.code.as_str()), Some(code), "{text}");
        }
    }

    #[test]
    fn a_text_without_letters_and_one_of_a_foreign_script_have_no_language() {
        let detector = Detector::new(&some());
        for text in ["", "12 + 3", "Утром король послал гонцов в город."] {
            assert_eq!(detector.detect(text), None, "{text}");
        }
    }
}
