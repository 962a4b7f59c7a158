//! Stop strings in a stream of text.
//!
//! Text that could be the beginning of a stop string is held back until it is clear. The match that is complete
//! first wins, and of two that are complete at the same place the longer one; both do not depend on how the text is
//! cut into pieces.

use super::error::TextError;

/// Watches one request's text for its stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    include_stop: bool,
    held: String,
}

/// What one piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text to pass on; ends with the stop string if it is to be included.
    pub text: String,
    /// The stop string that was found. Nothing may be pushed after it.
    pub matched: Option<String>,
}

impl StopMatcher {
    /// `include_stop` is vLLM's `include_stop_str_in_output`.
    pub fn new(stops: Vec<String>, include_stop: bool) -> Result<Self, TextError> {
        if stops.iter().any(String::is_empty) {
            return Err(TextError::EmptyStopString);
        }
        Ok(Self { stops, include_stop, held: String::new() })
    }

    /// Adds text and returns what is certain.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.stops.is_empty() {
            return StopOutput { text: text.to_owned(), matched: None };
        }
        self.held.push_str(text);
        let Some((start, end, stop)) = self.first_match() else {
            let held = self.held.split_off(self.held.len() - self.possible_start());
            return StopOutput { text: std::mem::replace(&mut self.held, held), matched: None };
        };
        let matched = Some(stop.to_owned());
        self.held.truncate(if self.include_stop { end } else { start });
        StopOutput { text: std::mem::take(&mut self.held), matched }
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Start, end and text of the match that ends first in the held text.
    fn first_match(&self) -> Option<(usize, usize, &str)> {
        let matches = self.stops.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start, start + stop.len(), stop.as_str()))
        });
        matches.min_by_key(|&(start, end, _)| (end, start))
    }

    /// Length of the longest end of the held text that a stop string begins with.
    fn possible_start(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = self.held.len().saturating_sub(longest.saturating_sub(1));
        let mut ends = (first..self.held.len()).filter(|&at| self.held.is_char_boundary(at));
        ends.find(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..])))
            .map_or(0, |at| self.held.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], include: bool, pieces: &[&str]) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(ToString::to_string).collect(), include).unwrap();
        let mut text = String::new();
        for piece in pieces {
            let output = matcher.push(piece);
            text += &output.text;
            if output.matched.is_some() {
                return (text, output.matched);
            }
        }
        text += &matcher.finish();
        (text, None)
    }

    #[test]
    fn match_across_token_borders_cuts_the_text() {
        assert_eq!(
            run(&["\nUser:"], false, &["hi\n", "Us", "er", ": x"]),
            ("hi".into(), Some("\nUser:".into()))
        );
        assert_eq!(
            run(&["\nUser:"], true, &["hi\nUs", "er: x"]),
            ("hi\nUser:".into(), Some("\nUser:".into()))
        );
    }

    #[test]
    fn false_start_is_passed_on_when_it_is_clear() {
        let mut matcher = StopMatcher::new(vec!["</end>".into()], false).unwrap();
        assert_eq!(matcher.push("a</e").text, "a");
        assert_eq!(matcher.push("m").text, "</em");
        assert_eq!(matcher.push("</en").text, "");
        assert_eq!(matcher.finish(), "</en");
    }

    #[test]
    fn match_that_is_complete_first_wins() {
        assert_eq!(run(&["abcdef", "cd"], false, &["abcdef"]), ("ab".into(), Some("cd".into())));
        assert_eq!(run(&["cd", "abcd"], false, &["xabcd"]), ("x".into(), Some("abcd".into())));
        assert_eq!(run(&["b", "a"], false, &["ab"]), (String::new(), Some("a".into())));
    }

    #[test]
    fn overlapping_start_of_a_repetitive_stop_is_not_lost() {
        assert_eq!(run(&["aab"], false, &["a", "a", "a", "b"]), ("a".into(), Some("aab".into())));
    }

    #[test]
    fn empty_stop_string_is_refused() {
        assert!(matches!(StopMatcher::new(vec![String::new()], false), Err(TextError::EmptyStopString)));
    }

    proptest! {
        #[test]
        fn result_does_not_depend_on_the_chunks(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            sizes in prop::collection::vec(1_usize..4, 24),
            include in any::<bool>(),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let mut pieces = Vec::new();
            let mut rest = &characters[..];
            for size in sizes {
                let (piece, tail) = rest.split_at(size.min(rest.len()));
                pieces.push(piece.concat());
                rest = tail;
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let whole = run(&stops, include, &[&text]);
            prop_assert_eq!(&run(&stops, include, &pieces), &whole);

            let ends = stops.iter().filter_map(|stop| text.find(stop).map(|at| (at + stop.len(), at)));
            match (ends.min(), whole.1) {
                (None, None) => prop_assert_eq!(whole.0, text),
                (Some((end, start)), Some(_)) => prop_assert_eq!(whole.0, &text[..if include { end } else { start }]),
                (expected, found) => prop_assert!(false, "expected {expected:?}, found {found:?}"),
            }
        }
    }
}
