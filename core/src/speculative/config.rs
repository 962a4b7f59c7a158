//! Who drafts, and how many tokens: vLLM's `--speculative-config`.

use std::str::FromStr;

use serde::Deserialize;

use super::ngram::NgramSizes;

/// Most drafts of a sequence in one step.
pub const MAX_DRAFTS: usize = 3;

/// How tokens are guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftMethod {
    /// The model's multi-token-prediction head.
    Mtp,
    /// What followed the last tokens earlier in the same sequence.
    Ngram(NgramSizes),
}

/// Speculative decoding, switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculativeConfig {
    /// How tokens are guessed.
    pub method: DraftMethod,
    /// Drafts per sequence and step, 1 to [`MAX_DRAFTS`].
    pub num_speculative_tokens: usize,
}

/// The object as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    method: String,
    num_speculative_tokens: usize,
    prompt_lookup_max: Option<usize>,
    prompt_lookup_min: Option<usize>,
}

impl FromStr for SpeculativeConfig {
    type Err = String;

    /// Reads the JSON object.
    fn from_str(text: &str) -> Result<Self, String> {
        let written: Written = serde_json::from_str(text).map_err(|error| {
            format!(
                r#"expected a JSON object such as {{"method": "mtp", "num_speculative_tokens": 1}}: {error}"#
            )
        })?;
        let num_speculative_tokens = written.num_speculative_tokens;
        if !(1..=MAX_DRAFTS).contains(&num_speculative_tokens) {
            return Err(format!(
                "num_speculative_tokens is {num_speculative_tokens}; expected 1 to {MAX_DRAFTS}"
            ));
        }
        Ok(Self { method: written.method()?, num_speculative_tokens })
    }
}

impl Written {
    fn method(&self) -> Result<DraftMethod, String> {
        let lookup = [self.prompt_lookup_min, self.prompt_lookup_max];
        match self.method.as_str() {
            "ngram" => NgramSizes::new(lookup).map(DraftMethod::Ngram),
            _ if lookup != [None, None] => Err(format!(
                "prompt_lookup_min and prompt_lookup_max belong to the method ngram, found method `{}`",
                self.method
            )),
            // vLLM's older names put the family in front.
            method if method == "mtp" || method.ends_with("_mtp") => Ok(DraftMethod::Mtp),
            other => Err(format!("method is `{other}`; expected mtp or ngram")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SpeculativeConfig, String> {
        text.parse()
    }

    #[test]
    fn vllms_objects_are_read() {
        let mtp = SpeculativeConfig { method: DraftMethod::Mtp, num_speculative_tokens: 2 };
        assert_eq!(read(r#"{"method": "mtp", "num_speculative_tokens": 2}"#), Ok(mtp));
        assert_eq!(read(r#"{"method": "some_family_mtp", "num_speculative_tokens": 2}"#), Ok(mtp));
        let ngram =
            read(r#"{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}"#).unwrap();
        assert_eq!(ngram.method, DraftMethod::Ngram(NgramSizes { min: 4, max: 4 }));
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_what_can() {
        let bad = [
            (r#"{"method": "mtp", "num_speculative_tokens": 0}"#, "is 0; expected 1 to 3"),
            (r#"{"method": "mtp", "num_speculative_tokens": 4}"#, "is 4; expected 1 to 3"),
            (r#"{"method": "mtp"}"#, "num_speculative_tokens"),
            (r#"{"method": "eagle3", "num_speculative_tokens": 1}"#, "`eagle3`; expected mtp or ngram"),
            (r#"{"method": "mtp", "num_speculative_tokens": 1, "model": "x"}"#, "`model`"),
            (r#"{"method": "mtp", "num_speculative_tokens": 1, "prompt_lookup_max": 2}"#, "the method ngram"),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_min": 3, "prompt_lookup_max": 2}"#,
                "from 3 to 2",
            ),
            ("mtp", "expected a JSON object"),
        ];
        for (text, expected) in bad {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
