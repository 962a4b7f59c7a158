//! Request fields that are known but not implemented, and fields that change nothing here.
//!
//! A field that would change the output is refused by name unless it has its neutral value: nothing is dropped silently.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// The value under which a field changes nothing.
enum Neutral {
    /// `false`, `""`, `[]` or `{}`.
    Empty,
    True,
    Number(f64),
}

const UNSUPPORTED: &[(&str, Neutral)] = &[
    ("allowed_token_ids", Neutral::Empty),
    ("audio", Neutral::Empty),
    ("bad_words", Neutral::Empty),
    ("cache_salt", Neutral::Empty),
    ("chat_template", Neutral::Empty),
    ("detokenize", Neutral::True),
    ("dry_multiplier", Neutral::Number(0.0)),
    ("function_call", Neutral::Empty),
    ("functions", Neutral::Empty),
    ("grammar", Neutral::Empty),
    ("guided_choice", Neutral::Empty),
    ("guided_grammar", Neutral::Empty),
    ("guided_json", Neutral::Empty),
    ("guided_regex", Neutral::Empty),
    ("json_schema", Neutral::Empty),
    ("kv_transfer_params", Neutral::Empty),
    ("logits_processors", Neutral::Empty),
    ("mirostat", Neutral::Number(0.0)),
    ("mm_processor_kwargs", Neutral::Empty),
    ("priority", Neutral::Number(0.0)),
    ("prompt_embeds", Neutral::Empty),
    ("spaces_between_special_tokens", Neutral::True),
    ("structural_tag", Neutral::Empty),
    ("structured_outputs", Neutral::Empty),
    ("suffix", Neutral::Empty),
    ("thinking_token_budget", Neutral::Empty),
    ("typical_p", Neutral::Number(1.0)),
    ("verbosity", Neutral::Empty),
    ("vllm_xargs", Neutral::Empty),
    ("web_search_options", Neutral::Empty),
    ("xtc_probability", Neutral::Number(0.0)),
];

const WITHOUT_EFFECT: &[&str] = &[
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Refuses what would change the output and drops what would not.
pub(super) fn refuse(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, neutral) in UNSUPPORTED {
        if let Some(value) = fields.take(name)
            && !is_neutral(&value, neutral)
        {
            return Err(ApiError::unsupported(*name, "leave it out"));
        }
    }
    response_format(fields)?;
    fields.ignore(WITHOUT_EFFECT);
    Ok(())
}

fn is_neutral(value: &Value, neutral: &Neutral) -> bool {
    match neutral {
        Neutral::True => value == &Value::Bool(true),
        Neutral::Number(number) => value.as_f64() == Some(*number),
        Neutral::Empty => match value {
            Value::Bool(flag) => !flag,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::Null | Value::Number(_) => false,
        },
    }
}

fn response_format(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(format) = fields.take("response_format") else { return Ok(()) };
    let mut format = Fields::of("response_format", format)?;
    match format.string("type")?.as_deref() {
        None | Some("text") => Ok(()),
        Some(kind) => {
            let note = format!("only the type `text` is, found `{kind}`");
            Err(ApiError::unsupported("response_format", &note))
        }
    }
}
