//! OpenAI messages in the form that a template reads.

use serde_json::{Map, Value, json};

use crate::text::error::TextError;

/// What a template accepts, found by probing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageFormat {
    /// `content` may be a list of parts.
    accepts_parts: bool,
    /// `content` must be a list of parts.
    requires_parts: bool,
    /// Tool-call arguments must stay JSON text; usually templates read them as objects.
    arguments_as_text: bool,
    /// The template knows the role `developer`; otherwise it is called `system`.
    knows_developer: bool,
}

const NEEDLE: &str = "metrale probe";

impl MessageFormat {
    /// `render` renders messages, or returns `None` if the template fails on them.
    pub(super) fn probe(source: &str, render: impl Fn(Value) -> Option<String>) -> Self {
        let shows = |content: Value| {
            let text = render(json!([{"role": "user", "content": content}]));
            // A template that prints the list itself shows its keys, too.
            text.is_some_and(|text| {
                text.contains(NEEDLE) && !text.contains("'type'") && !text.contains("\"type\"")
            })
        };
        let accepts_parts = shows(json!([{"type": "text", "text": NEEDLE}]));
        let call = |arguments: Value| {
            let function = json!({"name": NEEDLE, "arguments": arguments});
            render(json!([
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "call00000", "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": "call00000", "name": NEEDLE, "content": "x"},
            ]))
        };
        Self {
            accepts_parts,
            requires_parts: accepts_parts && !shows(json!(NEEDLE)),
            arguments_as_text: call(json!({"a": "b"})).is_none() && call(json!("{\"a\": \"b\"}")).is_some(),
            knows_developer: source.contains("developer"),
        }
    }

    pub(super) fn prepare(self, messages: &[Value]) -> Result<Vec<Value>, TextError> {
        let prepare = |(index, message): (usize, &Value)| self.prepare_message(index, message);
        messages.iter().enumerate().map(prepare).collect()
    }

    fn prepare_message(self, index: usize, message: &Value) -> Result<Value, TextError> {
        let place = format!("messages[{index}]");
        let Value::Object(message) = message else {
            return Err(invalid(place, "must be an object with `role` and `content`"));
        };
        let mut message = message.clone();
        let Some(role) = message.get("role").and_then(Value::as_str) else {
            return Err(invalid(format!("{place}.role"), "must be a string"));
        };
        if role == "developer" && !self.knows_developer {
            message.insert("role".to_owned(), "system".into());
        }
        if let Some(content) = message.get_mut("content") {
            self.prepare_content(&place, content)?;
        }
        if !message.contains_key("reasoning_content")
            && let Some(reasoning) = message.get("reasoning").cloned()
        {
            message.insert("reasoning_content".to_owned(), reasoning);
        }
        if !self.arguments_as_text
            && let Some(Value::Array(calls)) = message.get_mut("tool_calls")
        {
            for (call_index, call) in calls.iter_mut().enumerate() {
                parse_arguments(&format!("{place}.tool_calls[{call_index}]"), call)?;
            }
        }
        Ok(Value::Object(message))
    }

    fn prepare_content(self, place: &str, content: &mut Value) -> Result<(), TextError> {
        match content {
            Value::String(text) if self.requires_parts => {
                *content = json!([{"type": "text", "text": text}]);
            }
            Value::Array(parts) if !self.accepts_parts => {
                let texts = parts.iter().enumerate().map(|(index, part)| {
                    part_text(part).ok_or_else(|| {
                        let expected = "must be a text part ({\"type\": \"text\", \"text\": …}): this model takes text only";
                        invalid(format!("{place}.content[{index}]"), expected)
                    })
                });
                *content = Value::String(texts.collect::<Result<Vec<_>, _>>()?.join("\n"));
            }
            Value::String(_) | Value::Null | Value::Array(_) => {}
            _ => {
                return Err(invalid(format!("{place}.content"), "must be a string, a list of parts or null"));
            }
        }
        Ok(())
    }
}

fn invalid(param: String, expected: &str) -> TextError {
    TextError::InvalidMessage { message: format!("`{param}` {expected}"), param }
}

fn part_text(part: &Value) -> Option<&str> {
    match part {
        Value::String(text) => Some(text),
        part => part.get("text")?.as_str(),
    }
}

/// `function.arguments` arrives as JSON text and is read as an object.
fn parse_arguments(place: &str, call: &mut Value) -> Result<(), TextError> {
    let Some(arguments) = call.pointer_mut("/function/arguments") else { return Ok(()) };
    let Value::String(text) = arguments else { return Ok(()) };
    let parsed = if text.trim().is_empty() { Ok(Map::new()) } else { serde_json::from_str(text) };
    let object = parsed.map_err(|error| {
        invalid(
            format!("{place}.function.arguments"),
            &format!("must be a JSON object written as a string: {error}"),
        )
    })?;
    *arguments = Value::Object(object);
    Ok(())
}

/// The text of a message: its content, or the last text among its parts.
pub(super) fn last_text(message: &Value) -> Option<&str> {
    match message.get("content")? {
        Value::String(text) => Some(text),
        Value::Array(parts) => parts.iter().rev().find_map(part_text),
        _ => None,
    }
}

/// Cuts a rendered conversation right after the text of its final message, which templates may have trimmed.
pub(super) fn cut_after(rendered: &mut String, final_message: Option<&str>) -> Result<(), TextError> {
    let refuse = |expected: &str| Err(invalid("continue_final_message".to_owned(), expected));
    let Some(message) = final_message else {
        return refuse("needs a final message with text content");
    };
    let trimmed = message.trim();
    let Some(start) = rendered.rfind(trimmed) else {
        return refuse("is not possible: the chat template changes the text of the final message");
    };
    let untrimmed_end = message.trim_start();
    let kept = if rendered[start..].starts_with(untrimmed_end) { untrimmed_end } else { trimmed };
    rendered.truncate(start + kept.len());
    Ok(())
}
