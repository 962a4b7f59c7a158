//! Tokens to text, one at a time.
//!
//! The concatenation of everything [`IncrementalDetokenizer::push`] and [`IncrementalDetokenizer::finish`] return
//! equals [`Tokenizer::decode`] of all tokens, for every sequence of ids. Bytes that may still become a character
//! are held back, so a replacement character only appears where the full text has one. The cost per token does not
//! depend on how many came before.

use super::tokenizer::{TextStart, Tokenizer};

/// The text of a growing token sequence.
#[derive(Clone, Debug)]
pub struct IncrementalDetokenizer {
    tokenizer: Tokenizer,
    assembler: TextAssembler,
    skip_special_tokens: bool,
    text: String,
}

impl IncrementalDetokenizer {
    /// For tokens that form a text of their own (a translation, the answer of a chat).
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, skip_special_tokens: bool) -> Self {
        let assembler = TextAssembler::at_text_start(tokenizer);
        Self { tokenizer: tokenizer.clone(), assembler, skip_special_tokens, text: String::new() }
    }

    /// For tokens that continue a prompt: the space before their first word is kept.
    #[must_use]
    pub fn continuing(tokenizer: &Tokenizer, skip_special_tokens: bool) -> Self {
        let assembler = TextAssembler::default();
        Self { tokenizer: tokenizer.clone(), assembler, skip_special_tokens, text: String::new() }
    }

    /// Adds a token and returns the text that is now certain; empty while a character is incomplete.
    pub fn push(&mut self, token: u32) -> &str {
        self.text.clear();
        self.assembler.push(&self.tokenizer, token, self.skip_special_tokens, &mut self.text);
        &self.text
    }

    /// Ends the sequence and returns the rest: U+FFFD for an incomplete character, otherwise nothing.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.assembler.finish(&mut self.text);
        &self.text
    }
}

/// Joins the bytes of tokens into text; the state between two tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct TextAssembler {
    /// The beginning of a character whose rest has not come yet: at most three bytes.
    incomplete: Vec<u8>,
    /// Leading spaces that may still be dropped.
    spaces_to_drop: usize,
    /// Dropped from the next token, if it is the first.
    mark_to_drop: Option<char>,
}

impl TextAssembler {
    pub(super) fn at_text_start(tokenizer: &Tokenizer) -> Self {
        let (spaces_to_drop, mark_to_drop) = match tokenizer.text_start() {
            TextStart::Keep => (0, None),
            TextStart::DropSpaces(count) => (count, None),
            TextStart::DropMarksOfFirstToken(mark) => (0, Some(mark)),
        };
        Self { incomplete: Vec::new(), spaces_to_drop, mark_to_drop }
    }

    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: u32, skip_special: bool, text: &mut String) {
        if skip_special && tokenizer.is_special(id) {
            return;
        }
        if let Some(mark) = self.mark_to_drop
            && let Some(token) = tokenizer.id_to_token(id)
        {
            self.mark_to_drop = None;
            return self.push_bytes(token.replace(mark, "").as_bytes(), text);
        }
        let mut bytes = tokenizer.token_bytes(id);
        while self.spaces_to_drop > 0 && !bytes.is_empty() {
            match bytes.strip_prefix(b" ") {
                Some(rest) => {
                    bytes = rest;
                    self.spaces_to_drop -= 1;
                }
                None => self.spaces_to_drop = 0,
            }
        }
        self.push_bytes(bytes, text);
    }

    pub(super) fn finish(&mut self, text: &mut String) {
        if !self.incomplete.is_empty() {
            self.incomplete.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn push_bytes(&mut self, bytes: &[u8], text: &mut String) {
        if self.incomplete.is_empty() {
            let held = push_valid(bytes, text);
            self.incomplete.extend_from_slice(held);
        } else {
            let mut joined = std::mem::take(&mut self.incomplete);
            joined.extend_from_slice(bytes);
            let held = push_valid(&joined, text).len();
            joined.drain(..joined.len() - held);
            self.incomplete = joined;
        }
    }
}

/// Appends `bytes` to `text`, each maximal invalid part as one U+FFFD, and returns the incomplete end.
fn push_valid<'b>(mut bytes: &'b [u8], text: &mut String) -> &'b [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(valid) => {
                text.push_str(valid);
                return &[];
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                let Some(invalid) = error.error_len() else { return rest };
                text.push(char::REPLACEMENT_CHARACTER);
                bytes = &rest[invalid..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_in_any_chunks_give_the_lossy_text(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x80_u8..0xC0, 0xE0_u8..0xF5], 0..64),
            cuts in prop::collection::vec(0_usize..5, 0..64),
        ) {
            let mut assembler = TextAssembler::default();
            let mut text = String::new();
            let mut rest = &bytes[..];
            for cut in cuts {
                let (chunk, tail) = rest.split_at(cut.min(rest.len()));
                assembler.push_bytes(chunk, &mut text);
                prop_assert!(assembler.incomplete.len() <= 3);
                rest = tail;
            }
            assembler.push_bytes(rest, &mut text);
            assembler.finish(&mut text);
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
