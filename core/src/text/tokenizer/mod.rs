//! Text to token ids and back.
//!
//! Encoding is the `tokenizers` crate's; where the description comes from is ours: a Hugging Face directory
//! ([`huggingface`]) or GGUF metadata ([`gguf`], which writes the equivalent tokenizer.json). Decoding works on the
//! bytes of each token, the same for whole sequences, streams and the `bytes` of log-probabilities.

mod gguf;
mod gguf_metadata;
mod huggingface;
mod pre_tokenizer;
mod token_table;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::Tokenizer as Pipeline;

pub use gguf::{GgufTokenType, GgufVocab};
pub(super) use huggingface::read_object;
pub(in crate::text) use token_table::TextStart;
use token_table::{MAX_TOKEN_ID, TokenDecoder, TokenKind, TokenTable};

use super::detokenizer::TextAssembler;
use super::error::{TextError, wrong_type};

/// A loaded tokenizer. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    pipeline: Pipeline,
    table: TokenTable,
    roles: Roles,
    /// Prepended to a text that is encoded with special tokens, where the pipeline itself does not.
    prefix: Option<u32>,
    /// Appended likewise.
    suffix: Option<u32>,
}

/// Which tokens play which part.
#[derive(Clone, Debug, Default)]
struct Roles {
    bos: Option<u32>,
    /// All ids that end a sequence, the main one first.
    eos: Vec<u32>,
    /// `bos_token`, `eos_token`, `pad_token`, …: what a chat template sees.
    names: BTreeMap<String, String>,
    add_bos: bool,
    add_eos: bool,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and `tokenizer_config.json` and `special_tokens_map.json` where present.
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        huggingface::load(dir)
    }

    /// Builds the pipeline that the vocabulary's metadata describes.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self, TextError> {
        gguf::load(vocab)
    }

    /// Builds from a parsed tokenizer.json of any version. `origin` names it in errors.
    fn from_json(
        origin: &str,
        description: Value,
        roles: impl FnOnce(&TokenTable) -> Result<Roles, TextError>,
    ) -> Result<Self, TextError> {
        let table = read_table(origin, &description)?;
        let roles = roles(&table)?;
        let pipeline = build_pipeline(origin, description)?;
        check_added_ids(origin, &pipeline, &table)?;
        let (prefix, suffix) = added_around(origin, &pipeline, &roles)?;
        Ok(Self { inner: Arc::new(Inner { pipeline, table, roles, prefix, suffix }) })
    }

    /// Token ids of `text`. Special tokens written out in `text` become their ids. With `add_special_tokens` the
    /// model's own frame (usually a beginning-of-sequence token) goes around it; a rendered chat template already
    /// contains it.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let mut ids = encode(&self.inner.pipeline, text, add_special_tokens)
            .map_err(|message| TextError::InvalidMessage { message, param: "prompt".to_owned() })?;
        if add_special_tokens {
            if let Some(bos) = self.inner.prefix {
                ids.insert(0, bos);
            }
            ids.extend(self.inner.suffix);
        }
        Ok(ids)
    }

    /// The text of `ids`; invalid UTF-8 becomes U+FFFD. Ids without a token (the padding of a model's embedding)
    /// stand for nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let mut text = String::with_capacity(ids.len() * 4);
        let mut assembler = TextAssembler::at_text_start(self);
        for &id in ids {
            assembler.push(self, id, skip_special_tokens, &mut text);
        }
        assembler.finish(&mut text);
        text
    }

    /// The token as the vocabulary writes it (`Ġthe`, `▁the`, `<|im_end|>`).
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<&str> {
        self.inner.table.get(id).map(|token| &*token.text)
    }

    /// The id of a token as the vocabulary writes it.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.table.id(token)
    }

    /// The bytes that a token stands for inside a text; empty for an id without a token.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.inner.table.get(id).map_or(&[], |token| &token.bytes)
    }

    /// One more than the largest token id, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.table.size()
    }

    /// The beginning-of-sequence token.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.inner.roles.bos
    }

    /// Every token that ends a sequence, the tokenizer's main one first; may be empty.
    #[must_use]
    pub fn eos(&self) -> &[u32] {
        &self.inner.roles.eos
    }

    /// Whether `id` is left out of decoded text when special tokens are skipped.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.table.get(id).is_some_and(|token| token.kind == TokenKind::Special)
    }

    /// All special tokens, by ascending id.
    pub fn special_tokens(&self) -> impl Iterator<Item = (u32, &str)> {
        let special = |token: &token_table::Token| token.kind == TokenKind::Special;
        self.inner.table.iter().filter(move |(_, token)| special(token)).map(|(id, token)| (id, &*token.text))
    }

    /// Named tokens (`bos_token`, `eos_token`, `pad_token`, …) as a chat template sees them.
    #[must_use]
    pub fn named_tokens(&self) -> &BTreeMap<String, String> {
        &self.inner.roles.names
    }

    /// The largest id of the base vocabulary, added tokens left out.
    pub(super) fn max_base_token(&self) -> Option<(u32, &str)> {
        let base = self.inner.table.iter().filter(|(_, token)| token.kind == TokenKind::Normal);
        base.last().map(|(id, token)| (id, &*token.text))
    }

    pub(super) fn text_start(&self) -> TextStart {
        self.inner.table.text_start()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos())
            .field("eos", &self.eos())
            .finish_non_exhaustive()
    }
}

fn encode(pipeline: &Pipeline, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
    let encoding = pipeline
        .encode_fast(text, add_special_tokens)
        .map_err(|error| format!("cannot encode the text: {error}"))?;
    Ok(encoding.get_ids().to_vec())
}

fn build_pipeline(origin: &str, description: Value) -> Result<Pipeline, TextError> {
    let refuse = |message: String| TextError::Tokenizer { origin: origin.to_owned(), message };
    let text = description.to_string();
    drop(description);
    // The reader asserts some properties of its input instead of reporting them.
    let mut pipeline = std::panic::catch_unwind(|| text.parse::<Pipeline>())
        .map_err(|_| refuse("the tokenizer library gave up on this file (it is damaged)".to_owned()))?
        .map_err(|error| refuse(error.to_string()))?;
    // A prompt that does not fit is an error of the scheduler, never cut here.
    pipeline.with_truncation(None).map_err(|error| refuse(error.to_string()))?;
    pipeline.with_padding(None);
    Ok(pipeline)
}

/// Reads the vocabulary, the added tokens and the decoder of a tokenizer.json.
fn read_table(origin: &str, description: &Value) -> Result<TokenTable, TextError> {
    let refuse = |message: String| TextError::Tokenizer { origin: origin.to_owned(), message };
    let decoder = description.get("decoder").unwrap_or(&Value::Null);
    let decoder = if is_byte_level(description) {
        TokenDecoder::byte_level()
    } else {
        TokenDecoder::from_json(decoder).map_err(refuse)?
    };
    let mut table = TokenTable::new(decoder);

    match description.pointer("/model/vocab") {
        Some(Value::Object(vocab)) => {
            for (token, id) in vocab {
                let id = token_id(id)
                    .ok_or_else(|| wrong_type(origin, &format!("model.vocab.{token}"), ID, id))?;
                table.insert(id, token, TokenKind::Normal);
            }
        }
        Some(Value::Array(pieces)) => {
            for (id, piece) in pieces.iter().enumerate() {
                let text = piece.get(0).and_then(Value::as_str);
                let text =
                    text.ok_or_else(|| wrong_type(origin, &format!("model.vocab[{id}]"), PIECE, piece))?;
                table.insert(id as u32, text, TokenKind::Normal);
            }
        }
        other => {
            let found = other.unwrap_or(&Value::Null);
            return Err(wrong_type(origin, "model.vocab", "an object or an array", found));
        }
    }
    let added = description.get("added_tokens").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (index, token) in added.iter().enumerate() {
        let key = |field: &str| format!("added_tokens[{index}].{field}");
        let field = |name: &str| token.get(name).unwrap_or(&Value::Null);
        let id = token_id(field("id")).ok_or_else(|| wrong_type(origin, &key("id"), ID, field("id")))?;
        let content = field("content").as_str();
        let content =
            content.ok_or_else(|| wrong_type(origin, &key("content"), "a string", field("content")))?;
        let special = field("special").as_bool().unwrap_or(false);
        table.insert(id, content, if special { TokenKind::Special } else { TokenKind::Added });
    }
    Ok(table)
}

const ID: &str = "a token id below 2^24";
const PIECE: &str = "a [token, score] pair";

fn token_id(value: &Value) -> Option<u32> {
    let id = u32::try_from(value.as_u64()?).ok()?;
    (id <= MAX_TOKEN_ID).then_some(id)
}

/// A byte-level BPE decodes by its alphabet whatever `decoder` says, as the library does.
fn is_byte_level(description: &Value) -> bool {
    let byte_level = |value: &Value| value.get("type").and_then(Value::as_str) == Some("ByteLevel");
    let pre_tokenizer = description.get("pre_tokenizer").unwrap_or(&Value::Null);
    let members = pre_tokenizer.get("pretokenizers").and_then(Value::as_array);
    description.pointer("/model/byte_level") == Some(&Value::Bool(true))
        || byte_level(pre_tokenizer)
        || members.and_then(|members| members.last()).is_some_and(byte_level)
}

/// The library numbers added tokens that are not in the vocabulary by itself: a gap would shift them silently.
fn check_added_ids(origin: &str, pipeline: &Pipeline, table: &TokenTable) -> Result<(), TextError> {
    let known = pipeline.get_added_vocabulary().get_added_tokens_decoder();
    let shifted = table.iter().find(|(id, token)| token.kind != TokenKind::Normal && !known.contains_key(id));
    match shifted {
        None => Ok(()),
        Some((id, token)) => Err(TextError::Tokenizer {
            origin: origin.to_owned(),
            message: format!(
                "added token {:?} has id {id}, but the ids between the vocabulary and it are not all taken; \
                 add placeholder tokens for them",
                token.text
            ),
        }),
    }
}

/// What has to be added around a text because the roles ask for it and the pipeline does not do it.
fn added_around(
    origin: &str,
    pipeline: &Pipeline,
    roles: &Roles,
) -> Result<(Option<u32>, Option<u32>), TextError> {
    let frame = encode(pipeline, "", true)
        .map_err(|message| TextError::Tokenizer { origin: origin.to_owned(), message })?;
    let bos = roles.bos.filter(|bos| roles.add_bos && frame.first() != Some(bos));
    let eos = roles.eos.first().copied().filter(|eos| roles.add_eos && frame.last() != Some(eos));
    Ok((bos, eos))
}
