//! A tokenizer from a Hugging Face model directory.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::token_table::TokenTable;
use super::{Roles, Tokenizer};
use crate::text::error::{TextError, parse_json, read_optional_text, read_text, wrong_type};

pub(super) fn load(dir: &Path) -> Result<Tokenizer, TextError> {
    let path = dir.join("tokenizer.json");
    let description = parse_json(&path, &read_text(&path)?)?;
    let config_path = dir.join("tokenizer_config.json");
    let config = read_object(&config_path)?;
    let special = read_object(&dir.join("special_tokens_map.json"))?;
    Tokenizer::from_json(&path.display().to_string(), description, |table| {
        read_roles(&config_path, &config, &special, table)
    })
}

/// A JSON object from a file that may be missing.
pub(in crate::text) fn read_object(path: &Path) -> Result<Map<String, Value>, TextError> {
    let Some(text) = read_optional_text(path)? else { return Ok(Map::new()) };
    match parse_json(path, &text)? {
        Value::Object(object) => Ok(object),
        other => Err(wrong_type(path.display(), "(top level)", "an object", &other)),
    }
}

fn read_roles(
    path: &Path,
    config: &Map<String, Value>,
    special: &Map<String, Value>,
    table: &TokenTable,
) -> Result<Roles, TextError> {
    let names = named_tokens(config, special);
    let id = |role: &str| -> Result<Option<u32>, TextError> {
        let Some(token) = names.get(role) else { return Ok(None) };
        match table.id(token) {
            Some(id) => Ok(Some(id)),
            None => Err(TextError::Tokenizer {
                origin: path.display().to_string(),
                message: format!("`{role}` is {token:?}, which tokenizer.json does not contain"),
            }),
        }
    };
    let flag = |key: &str| match config.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(wrong_type(path.display(), key, "true or false", other)),
    };
    Ok(Roles {
        bos: id("bos_token")?,
        eos: id("eos_token")?.into_iter().collect(),
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        names,
    })
}

/// `bos_token`, `eos_token`, … and the model's own `extra_special_tokens`; `tokenizer_config.json` wins.
fn named_tokens(config: &Map<String, Value>, special: &Map<String, Value>) -> BTreeMap<String, String> {
    let extra = config.get("extra_special_tokens").and_then(Value::as_object);
    let sources = [Some(special), extra, Some(config)];
    let mut names = BTreeMap::new();
    for (role, token) in sources.into_iter().flatten().flatten() {
        if !role.ends_with("_token") {
            continue;
        }
        match token_text(token) {
            Some(text) => names.insert(role.clone(), text.to_owned()),
            // An explicit null takes the role away.
            None if token.is_null() => names.remove(role),
            None => None,
        };
    }
    names
}

/// A token is a string or an object with its `content`.
fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}
