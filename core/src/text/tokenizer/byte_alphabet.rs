//! The byte alphabet of byte-level BPE (GPT-2), and vocabularies that lack part of it.
//!
//! Some published vocabularies have no token for bytes that never occurred in training. The tokenizer library requires
//! one for every byte, so placeholders are added behind the vocabulary; what they stand for is left out of encoded text,
//! as the reference implementations do.

use serde_json::{Value, json};

/// The character that a byte is written as.
fn character(byte: u8) -> char {
    let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable {
        return char::from(byte);
    }
    // The other bytes, in order, follow from U+0100 on.
    let place = match byte {
        0..=b' ' => u32::from(byte),
        0x7f..=0xa0 => u32::from(byte) - 0x7f + 33,
        _ => 67,
    };
    char::from_u32(0x100 + place).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Gives every byte that has none a token with an id from `first_free` on, and the added tokens their own ids, so that
/// nothing is renumbered. Does nothing for a complete vocabulary.
pub(super) fn complete(description: &mut Value, first_free: usize) {
    let Some(vocab) = description.pointer("/model/vocab").and_then(Value::as_object) else { return };
    let missing: Vec<_> = (0..=255).map(|b| character(b).to_string()).filter(|c| !vocab.contains_key(c)).collect();
    if missing.is_empty() {
        return;
    }
    let added = description.get("added_tokens").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(vocab) = description.pointer_mut("/model/vocab").and_then(Value::as_object_mut) else { return };
    for token in added {
        if let (Some(content), Some(id)) = (token["content"].as_str(), token.get("id")) {
            vocab.entry(content).or_insert_with(|| id.clone());
        }
    }
    for (i, text) in missing.into_iter().enumerate() {
        vocab.insert(text, json!(first_free + i));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{character, complete};
    use serde_json::json;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        let all: BTreeSet<char> = (0..=255).map(character).collect();
        assert_eq!(all.len(), 256);
        assert_eq!((character(b' '), character(b'\n'), character(b'a'), character(0xad)), ('Ġ', 'Ċ', 'a', '\u{143}'));
    }

    #[test]
    fn placeholders_follow_the_vocabulary_and_renumber_nothing() {
        let mut description = json!({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 7, "content": "<s>"}]});
        complete(&mut description, 8);
        let vocab = description["model"]["vocab"].as_object().unwrap();
        assert_eq!((&vocab["a"], &vocab["<s>"], vocab.len()), (&json!(0), &json!(7), 257));
        assert!(vocab.iter().filter(|(k, _)| *k != "a" && *k != "<s>").all(|(_, id)| id.as_u64() >= Some(8)));
    }
}
