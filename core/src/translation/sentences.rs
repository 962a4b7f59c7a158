//! Where sentences end, by Unicode Standard Annex #29.

use unicode_segmentation::UnicodeSegmentation;

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A sentence, without the space around it.
    Sentence(&'a str),
    /// What stands between sentences.
    Space(&'a str),
}

/// Cuts a text into sentences and the space between them; in order, they are the text. A line break ends a sentence.
pub fn split_sentences(text: &str) -> impl Iterator<Item = Piece<'_>> {
    text.split_sentence_bounds().flat_map(|part| {
        let start = part.len() - part.trim_start().len();
        let end = start + part.trim().len();
        [Piece::Space(&part[..start]), Piece::Sentence(&part[start..end]), Piece::Space(&part[end..])]
            .into_iter()
            .filter(|piece| !matches!(piece, Piece::Space("") | Piece::Sentence("")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(text: &str) -> Vec<&str> {
        split_sentences(text)
            .filter_map(|piece| match piece {
                Piece::Sentence(text) => Some(text),
                Piece::Space(_) => None,
            })
            .collect()
    }

    #[test]
    fn sentences_and_lines_are_cut() {
        assert_eq!(
            sentences("One is here. Two?  Three!\n\nFour"),
            ["One is here.", "Two?", "Three!", "Four"]
        );
        assert_eq!(sentences("It costs 3.50 today."), ["It costs 3.50 today."]);
        assert_eq!(sentences("你好。再见。"), ["你好。", "再见。"]);
        assert_eq!(sentences(" \n"), [""; 0]);
    }

    #[test]
    fn nothing_is_lost() {
        for text in ["", "  One. Two\n", "a\r\n\r\nb. c", "no end"] {
            let joined: String = split_sentences(text)
                .map(|piece| match piece {
                    Piece::Sentence(text) | Piece::Space(text) => text,
                })
                .collect();
            assert_eq!(joined, text);
        }
    }
}
