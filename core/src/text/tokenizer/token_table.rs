//! The vocabulary by id: text, bytes and kind of every token, and how bytes become text.
//!
//! Every supported decoder is *concatenative*: a token always stands for the same bytes, and only the start of a
//! text is special (SentencePiece drops the space it put before the first word). That is what makes streaming
//! exact and constant-time per token; a decoder that is not of this kind is refused when it is read.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

/// What kind of token an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// An entry of the model's vocabulary.
    Normal,
    /// An added token that stays visible in decoded text.
    Added,
    /// A control token, left out of decoded text when special tokens are skipped.
    Special,
}

/// One vocabulary entry.
#[derive(Clone, Debug)]
pub(super) struct Token {
    /// As written in the vocabulary (`Ġthe`, `▁the`, `<|im_end|>`).
    pub(super) text: Arc<str>,
    /// What it decodes to inside a text; single tokens need not be valid UTF-8.
    pub(super) bytes: Box<[u8]>,
    pub(super) kind: TokenKind,
}

/// What happens to the marks that stand for the space before the first word of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum TextStart {
    /// Nothing: decoding is plain concatenation.
    Keep,
    /// Up to this many leading spaces are dropped.
    DropSpaces(usize),
    /// Every occurrence of this mark in the first token is dropped.
    DropMarksOfFirstToken(char),
}

/// How vocabulary text becomes bytes.
#[derive(Clone, Debug)]
pub(super) struct TokenDecoder {
    rule: ByteRule,
    pub(super) start: TextStart,
}

#[derive(Clone, Debug)]
enum ByteRule {
    /// GPT-2's printable alphabet: one character per byte.
    ByteLevel,
    /// Marks are replaced in order; `<0xNN>` is a byte where `byte_fallback` is set.
    SentencePiece { replacements: Vec<(String, String)>, byte_fallback: bool },
    /// No decoder: tokens are joined by spaces.
    Words,
}

impl TokenDecoder {
    pub(super) fn byte_level() -> Self {
        Self { rule: ByteRule::ByteLevel, start: TextStart::Keep }
    }

    /// Reads the `decoder` of a tokenizer.json. The message of the error names what is not supported.
    pub(super) fn from_json(decoder: &Value) -> Result<Self, String> {
        match decoder_type(decoder) {
            None if decoder.is_null() => Ok(Self { rule: ByteRule::Words, start: TextStart::DropSpaces(1) }),
            Some("ByteLevel") => Ok(Self::byte_level()),
            Some("Metaspace") => metaspace(decoder),
            Some("Sequence") => sequence(decoder),
            Some("Replace" | "ByteFallback" | "Fuse") => sentence_piece(std::slice::from_ref(decoder)),
            Some(other) => Err(format!(
                "the `{other}` decoder is not supported (supported: ByteLevel, Metaspace, and sequences of Replace, \
                 ByteFallback, Fuse and Strip)"
            )),
            None => Err(format!("`decoder` has no `type`: {decoder}")),
        }
    }

    fn bytes(&self, text: &str, kind: TokenKind) -> Box<[u8]> {
        match &self.rule {
            ByteRule::ByteLevel if kind != TokenKind::Normal => text.as_bytes().into(),
            ByteRule::ByteLevel => byte_level_bytes(text),
            ByteRule::SentencePiece { replacements, byte_fallback } => {
                if let Some(byte) = byte_fallback.then(|| byte_token(text)).flatten() {
                    return Box::new([byte]);
                }
                let replaced =
                    replacements.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
                replaced.into_bytes().into()
            }
            ByteRule::Words => format!(" {text}").into_bytes().into(),
        }
    }
}

fn decoder_type(decoder: &Value) -> Option<&str> {
    decoder.get("type").and_then(Value::as_str)
}

fn metaspace(decoder: &Value) -> Result<TokenDecoder, String> {
    let mark = decoder
        .get("replacement")
        .and_then(Value::as_str)
        .and_then(|mark| mark.chars().next())
        .ok_or("the Metaspace decoder has no `replacement`")?;
    let never = decoder.get("prepend_scheme").and_then(Value::as_str) == Some("never");
    Ok(TokenDecoder {
        rule: ByteRule::SentencePiece {
            replacements: vec![(mark.to_string(), " ".to_owned())],
            byte_fallback: false,
        },
        start: if never { TextStart::Keep } else { TextStart::DropMarksOfFirstToken(mark) },
    })
}

fn sequence(decoder: &Value) -> Result<TokenDecoder, String> {
    let members = decoder.get("decoders").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    match members {
        [only] => TokenDecoder::from_json(only),
        members => sentence_piece(members),
    }
}

/// `[Replace…, ByteFallback, Fuse, Strip]` in any order that keeps it concatenative.
fn sentence_piece(members: &[Value]) -> Result<TokenDecoder, String> {
    let mut replacements = Vec::new();
    let mut byte_fallback = false;
    let mut fused = false;
    let mut start = TextStart::Keep;
    for member in members {
        match decoder_type(member) {
            Some("Replace") => replacements.push(replacement(member)?),
            Some("ByteFallback") => byte_fallback = true,
            Some("Fuse") => fused = true,
            Some("Strip") if fused => start = strip(member)?,
            other => {
                return Err(format!(
                    "a decoder sequence with `{}` at this place is not supported (supported: Replace, ByteFallback, \
                     Fuse, then Strip)",
                    other.unwrap_or("no type")
                ));
            }
        }
    }
    Ok(TokenDecoder { rule: ByteRule::SentencePiece { replacements, byte_fallback }, start })
}

fn replacement(member: &Value) -> Result<(String, String), String> {
    let pattern = member.pointer("/pattern/String").and_then(Value::as_str);
    let content = member.get("content").and_then(Value::as_str);
    match (pattern, content) {
        (Some(pattern), Some(content)) if pattern.chars().count() == 1 => {
            Ok((pattern.to_owned(), content.to_owned()))
        }
        _ => Err(format!("a Replace decoder must map one character to a string, found {member}")),
    }
}

fn strip(member: &Value) -> Result<TextStart, String> {
    let content = member.get("content").and_then(Value::as_str);
    let count = |key| member.get(key).and_then(Value::as_u64).unwrap_or(0);
    match (content, count("start"), count("stop")) {
        (Some(" "), start, 0) => Ok(TextStart::DropSpaces(start as usize)),
        _ => Err(format!("a Strip decoder must strip leading spaces only, found {member}")),
    }
}

/// `<0x0A>` is the byte 10.
fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        u8::from_str_radix(hex, 16).ok()
    } else {
        None
    }
}

/// Characters outside the alphabet stand for themselves.
fn byte_level_bytes(text: &str) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match byte_of_character(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes.into()
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards, in order.
fn byte_of_character(character: char) -> Option<u8> {
    let code = character as u32;
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// Tokens by id and ids by token.
pub(super) struct TokenTable {
    tokens: Vec<Option<Token>>,
    ids: HashMap<Arc<str>, u32>,
    decoder: TokenDecoder,
}

/// Ids above this are taken for a damaged file; the largest known vocabularies have 2^18.1 entries.
pub(super) const MAX_TOKEN_ID: u32 = (1 << 24) - 1;

impl TokenTable {
    pub(super) fn new(decoder: TokenDecoder) -> Self {
        Self { tokens: Vec::new(), ids: HashMap::new(), decoder }
    }

    /// Adds a token or replaces the one with this id. `id` must not exceed [`MAX_TOKEN_ID`].
    pub(super) fn insert(&mut self, id: u32, text: &str, kind: TokenKind) {
        let index = id as usize;
        if index >= self.tokens.len() {
            self.tokens.resize(index + 1, None);
        }
        let text: Arc<str> = text.into();
        self.ids.insert(Arc::clone(&text), id);
        self.tokens[index] = Some(Token { bytes: self.decoder.bytes(&text, kind), text, kind });
    }

    pub(super) fn get(&self, id: u32) -> Option<&Token> {
        self.tokens.get(id as usize)?.as_ref()
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// One more than the largest id.
    pub(super) fn size(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Token)> {
        self.tokens.iter().enumerate().filter_map(|(id, token)| Some((id as u32, token.as_ref()?)))
    }

    pub(super) fn text_start(&self) -> TextStart {
        self.decoder.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn byte_alphabet_is_a_bijection_onto_all_bytes() {
        let mut bytes: Vec<u8> =
            (0..0x200).filter_map(char::from_u32).filter_map(byte_of_character).collect();
        assert_eq!(bytes.len(), 256);
        bytes.sort_unstable();
        bytes.dedup();
        assert_eq!(bytes.len(), 256);
        assert_eq!(byte_of_character('Ġ'), Some(b' '));
        assert_eq!(byte_of_character('Ċ'), Some(b'\n'));
    }

    #[test]
    fn unsupported_decoder_is_refused_by_name() {
        let error = TokenDecoder::from_json(&json!({"type": "WordPiece", "prefix": "##"})).unwrap_err();
        assert!(error.contains("`WordPiece`"), "{error}");
        let error = TokenDecoder::from_json(&json!({"type": "Sequence", "decoders": [
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "Fuse"}]}));
        assert!(error.unwrap_err().contains("`Strip`"));
    }

    #[test]
    fn byte_fallback_token_is_its_byte() {
        let decoder = TokenDecoder::from_json(&json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}))
        .unwrap();
        assert_eq!(&*decoder.bytes("<0xE2>", TokenKind::Normal), [0xE2]);
        assert_eq!(&*decoder.bytes("▁a▁b", TokenKind::Normal), b" a b");
        assert_eq!(&*decoder.bytes("<0xE>", TokenKind::Normal), b"<0xE>");
        assert_eq!(decoder.start, TextStart::DropSpaces(1));
    }
}
