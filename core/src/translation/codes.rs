//! Language codes: ISO 639-1 where a language has one, and names.

use isolang::Language as Iso;

/// Individual languages that stand for the macrolanguage with a two-letter code.
const MEMBERS: &[(&str, &str)] = &[
    ("als", "sq"),
    ("arb", "ar"),
    ("ayr", "ay"),
    ("azj", "az"),
    ("cmn", "zh"),
    ("gaz", "om"),
    ("khk", "mn"),
    ("kmr", "ku"),
    ("lvs", "lv"),
    ("npi", "ne"),
    ("ory", "or"),
    ("pbt", "ps"),
    ("pes", "fa"),
    ("plt", "mg"),
    ("quy", "qu"),
    ("swh", "sw"),
    ("uzn", "uz"),
    ("ydd", "yi"),
    ("zsm", "ms"),
];

/// The two-letter code of a language with this ISO 639 code of two or three letters.
pub(super) fn two_letters(code: &str) -> Option<&'static str> {
    let member = MEMBERS.iter().find(|(member, _)| *member == code).map(|(_, short)| *short);
    member.or_else(|| iso(code)?.to_639_1())
}

/// The English name of a language with this ISO 639 code; the code itself if there is none.
pub(super) fn name(code: &str) -> String {
    let language = two_letters(code).and_then(Iso::from_639_1).or_else(|| iso(code));
    language.map_or_else(|| code.to_owned(), |language| plain(language.to_name()).to_owned())
}

/// Without remarks such as "(macrolanguage)".
fn plain(name: &str) -> &str {
    name.split(" (").next().unwrap_or(name)
}

fn iso(code: &str) -> Option<Iso> {
    Iso::from_639_1(code).or_else(|| Iso::from_639_3(code))
}

/// The name of a script with this ISO 15924 code, for languages that are written in more than one; the code itself
/// where it is none of these.
pub(super) fn script_name(code: &str) -> &str {
    match code {
        "Arab" => "Arabic",
        "Cyrl" => "Cyrillic",
        "Deva" => "Devanagari",
        "Hans" => "Simplified",
        "Hant" => "Traditional",
        "Latn" => "Latin",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_every_length_have_a_short_one_and_a_name() {
        for (code, short, expected) in [
            ("eng", Some("en"), "English"),
            ("spa", Some("es"), "Spanish"),
            ("arb", Some("ar"), "Arabic"),
            ("zho", Some("zh"), "Chinese"),
            ("de", Some("de"), "German"),
            ("ace", None, "Achinese"),
        ] {
            assert_eq!((two_letters(code), name(code).as_str()), (short, expected), "{code}");
        }
        assert_eq!((two_letters("xxxx"), name("xxxx").as_str()), (None, "xxxx"));
    }
}
