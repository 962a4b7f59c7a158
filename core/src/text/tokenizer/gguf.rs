//! A tokenizer from GGUF metadata.
//!
//! The metadata is rewritten as the tokenizer.json it was made from, so that both kinds of checkpoint encode through
//! the same code. Byte-level BPE ("gpt2") needs the split rule's name; SentencePiece BPE ("llama") has scores
//! instead of merges.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::pre_tokenizer::{self, PreTokenizer};
use super::token_table::TokenTable;
use super::{Roles, Tokenizer};
use crate::text::error::TextError;

/// The tokenizer part of a GGUF file's metadata, one field per `tokenizer.*` key. Absent keys are `None` or empty.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: "gpt2" or "llama".
    pub model: String,
    /// `tokenizer.ggml.pre`: the split rule of a "gpt2" vocabulary.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, in id order.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, one per token; empty if all are normal.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.scores`, one per token ("llama" only).
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.merges`, best first, as "left right" ("gpt2" only).
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: ends a turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: ends a message that waits for a tool.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix` ("llama" only; absent means true).
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufTokenType {
    /// An ordinary piece.
    Normal,
    /// The unknown token.
    Unknown,
    /// A control token.
    Control,
    /// Always matched whole, visible.
    UserDefined,
    /// A placeholder.
    Unused,
    /// `<0xNN>`.
    Byte,
}

impl GgufTokenType {
    fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

const ORIGIN: &str = "GGUF metadata";

fn refuse(message: impl Into<String>) -> TextError {
    TextError::Tokenizer { origin: ORIGIN.to_owned(), message: message.into() }
}

pub(super) fn load(vocab: &GgufVocab) -> Result<Tokenizer, TextError> {
    check_lengths(vocab)?;
    match vocab.model.as_str() {
        "gpt2" => {
            let rule = split_rule(vocab)?;
            Tokenizer::from_json(ORIGIN, byte_level_bpe(vocab, &rule)?, |table| {
                read_roles(vocab, table, rule.add_bos)
            })
        }
        "llama" => {
            Tokenizer::from_json(ORIGIN, sentence_piece_bpe(vocab)?, |table| read_roles(vocab, table, true))
        }
        other => Err(refuse(format!(
            "tokenizer.ggml.model is {other:?}; supported: \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece BPE)"
        ))),
    }
}

fn check_lengths(vocab: &GgufVocab) -> Result<(), TextError> {
    let count = vocab.tokens.len();
    if count == 0 {
        return Err(refuse("tokenizer.ggml.tokens is missing or empty"));
    }
    for (key, found) in [("token_type", vocab.token_types.len()), ("scores", vocab.scores.len())] {
        if found != 0 && found != count {
            return Err(refuse(format!("tokenizer.ggml.{key} has {found} entries for {count} tokens")));
        }
    }
    Ok(())
}

fn split_rule(vocab: &GgufVocab) -> Result<PreTokenizer, TextError> {
    let Some(pre) = &vocab.pre else {
        return Err(refuse(
            "tokenizer.ggml.pre is missing: the file does not say how text is split before merging; convert the \
             model again with a current converter",
        ));
    };
    pre_tokenizer::find(pre).ok_or_else(|| TextError::UnknownPreTokenizer {
        pre: pre.clone(),
        known: pre_tokenizer::known_names(),
    })
}

fn token_type(vocab: &GgufVocab, index: usize) -> Result<GgufTokenType, TextError> {
    let Some(&code) = vocab.token_types.get(index) else { return Ok(GgufTokenType::Normal) };
    GgufTokenType::from_code(code)
        .ok_or_else(|| refuse(format!("tokenizer.ggml.token_type[{index}] is {code}, expected 1 to 6")))
}

/// Control and user-defined tokens, matched in text before anything else.
fn added_tokens(vocab: &GgufVocab) -> Result<Vec<Value>, TextError> {
    let mut added = Vec::new();
    for (id, content) in vocab.tokens.iter().enumerate() {
        let special = match token_type(vocab, id)? {
            GgufTokenType::Control | GgufTokenType::Unknown => true,
            GgufTokenType::UserDefined => false,
            _ => continue,
        };
        if !content.is_empty() {
            added.push(json!({
                "id": id, "content": content, "special": special,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            }));
        }
    }
    Ok(added)
}

fn vocab_object(vocab: &GgufVocab) -> Map<String, Value> {
    vocab.tokens.iter().enumerate().map(|(id, token)| (token.clone(), Value::from(id))).collect()
}

fn byte_level_bpe(vocab: &GgufVocab, rule: &PreTokenizer) -> Result<Value, TextError> {
    if vocab.merges.is_empty() {
        return Err(refuse("tokenizer.ggml.merges is missing or empty"));
    }
    let mut merges = Vec::with_capacity(vocab.merges.len());
    for (index, merge) in vocab.merges.iter().enumerate() {
        let pair = merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty());
        let (left, right) = pair.ok_or_else(|| {
            refuse(format!("tokenizer.ggml.merges[{index}] is {merge:?}, expected \"left right\""))
        })?;
        merges.push(json!([left, right]));
    }
    let splits: Vec<Value> = rule
        .splits
        .iter()
        .map(|split| json!({"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false}))
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let pre_tokenizers: Vec<Value> = splits.into_iter().chain([byte_level.clone()]).collect();
    Ok(json!({
        "version": "1.0",
        "added_tokens": added_tokens(vocab)?,
        "normalizer": if rule.nfc { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": rule.ignore_merges, "vocab": vocab_object(vocab), "merges": merges,
        },
    }))
}

fn sentence_piece_bpe(vocab: &GgufVocab) -> Result<Value, TextError> {
    if vocab.scores.is_empty() {
        return Err(refuse("tokenizer.ggml.scores is missing: a \"llama\" vocabulary needs them"));
    }
    let prefix_space = vocab.add_space_prefix.unwrap_or(true);
    let mut normalizers = Vec::new();
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix_space {
        normalizers.push(json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    normalizers.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}));
    let unknown = vocab.unknown.and_then(|id| vocab.tokens.get(id as usize));
    Ok(json!({
        "version": "1.0",
        "added_tokens": added_tokens(vocab)?,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": unknown,
            "vocab": vocab_object(vocab), "merges": merges_from_scores(vocab)?,
        },
    }))
}

/// SentencePiece merges the adjacent pair whose union scores best. As an ordered list: by falling score of the
/// union, ties by falling length of the left, then the right part.
fn merges_from_scores(vocab: &GgufVocab) -> Result<Vec<Value>, TextError> {
    let mut ids: HashMap<&str, usize> = HashMap::with_capacity(vocab.tokens.len());
    for (id, token) in vocab.tokens.iter().enumerate() {
        if matches!(token_type(vocab, id)?, GgufTokenType::Normal | GgufTokenType::UserDefined) {
            ids.insert(token, id);
        }
    }
    let mut merges = Vec::new();
    for (id, token) in vocab.tokens.iter().enumerate() {
        if ids.get(token.as_str()) != Some(&id) {
            continue;
        }
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            if let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right)) {
                merges.push((vocab.scores[id], id, left_id, right_id, left, right));
            }
        }
    }
    let length = |part: &str| part.chars().count();
    merges.sort_by(|a, b| {
        let by_score = b.0.total_cmp(&a.0);
        by_score
            .then_with(|| (length(b.4), length(b.5)).cmp(&(length(a.4), length(a.5))))
            .then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3)))
    });
    Ok(merges.into_iter().map(|(.., left, right)| json!([left, right])).collect())
}

fn read_roles(vocab: &GgufVocab, table: &TokenTable, default_add_bos: bool) -> Result<Roles, TextError> {
    let check = |key: &str, id: Option<u32>| match id {
        Some(id) if table.get(id).is_none() => {
            let size = vocab.tokens.len();
            Err(refuse(format!("tokenizer.ggml.{key} is {id}, but there are {size} tokens")))
        }
        id => Ok(id),
    };
    let bos = check("bos_token_id", vocab.bos)?;
    let eos = check("eos_token_id", vocab.eos)?;
    let mut ends: Vec<u32> = eos.into_iter().collect();
    for (key, id) in [("eot_token_id", vocab.eot), ("eom_token_id", vocab.eom)] {
        if let Some(id) = check(key, id)?.filter(|id| !ends.contains(id)) {
            ends.push(id);
        }
    }
    let roles = [
        ("bos_token", bos),
        ("eos_token", eos),
        ("unk_token", check("unknown_token_id", vocab.unknown)?),
        ("pad_token", check("padding_token_id", vocab.padding)?),
    ];
    let text = |id| table.get(id).map(|token| token.text.to_string());
    let names: BTreeMap<String, String> =
        roles.into_iter().filter_map(|(role, id)| Some((role.to_owned(), text(id?)?))).collect();
    Ok(Roles {
        bos,
        eos: ends,
        names,
        add_bos: vocab.add_bos.unwrap_or(default_add_bos),
        add_eos: vocab.add_eos.unwrap_or(false),
    })
}
