//! OpenAI messages in the form that a template reads.

use serde_json::{Map, Value, json};

use crate::text::error::TextError;

/// What a template accepts, found by probing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageFormat {
    /// Whether `content` may be a list of parts, for each of [`ROLES`].
    accepts_parts: [bool; ROLES.len()],
    /// `content` must be a list of parts.
    requires_parts: bool,
    /// Tool-call arguments must stay JSON text; usually templates read them as objects.
    arguments_as_text: bool,
    /// The template knows the role `developer`; otherwise it is called `system`.
    knows_developer: bool,
}

const NEEDLE: &str = "metrale probe";

/// The roles whose content is probed; others count as `system`.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

impl MessageFormat {
    /// `render` renders messages, or returns `None` if the template fails on them.
    pub(super) fn probe(source: &str, render: impl Fn(Value) -> Option<String>) -> Self {
        let shows = |role: &str, content: Value| {
            let message =
                json!({"role": role, "content": content, "tool_call_id": "call00000", "name": NEEDLE});
            // Some templates want a user's message, and some want it first.
            let after_user = json!([{"role": "user", "content": "x"}, message]);
            let before_user = json!([message, {"role": "user", "content": "x"}]);
            let conversations = [json!([message]), after_user, before_user];
            let text = conversations.into_iter().find_map(&render);
            // A template that prints the list itself shows its keys, too.
            text.is_some_and(|text| {
                text.contains(NEEDLE) && !text.contains("'type'") && !text.contains("\"type\"")
            })
        };
        let part = || json!([{"type": "text", "text": NEEDLE}]);
        let accepts_parts = ROLES.map(|role| shows(role, part()));
        let user_accepts_parts = shows("user", part());
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
            requires_parts: user_accepts_parts && !shows("user", json!(NEEDLE)),
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
        let accepts_parts = self.accepts_parts[ROLES.iter().position(|known| *known == role).unwrap_or(0)];
        if role == "developer" && !self.knows_developer {
            message.insert("role".to_owned(), "system".into());
        }
        if let Some(content) = message.get_mut("content") {
            self.prepare_content(&place, content, accepts_parts)?;
        }
        alias_reasoning(&mut message);
        if !self.arguments_as_text
            && let Some(Value::Array(calls)) = message.get_mut("tool_calls")
        {
            for (call_index, call) in calls.iter_mut().enumerate() {
                parse_arguments(&format!("{place}.tool_calls[{call_index}]"), call)?;
            }
        }
        Ok(Value::Object(message))
    }

    fn prepare_content(self, place: &str, content: &mut Value, accepts_parts: bool) -> Result<(), TextError> {
        match content {
            Value::String(text) if self.requires_parts => {
                *content = json!([{"type": "text", "text": text}]);
            }
            // A text is a text: templates ask whether content is empty, and a list with an empty text is not.
            Value::Array(parts) if !self.requires_parts && only_text(parts).is_some() => {
                *content = only_text(parts).into();
            }
            Value::Array(parts) if !accepts_parts => {
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

/// Reasoning goes by three names; templates read the first two.
fn alias_reasoning(message: &mut Map<String, Value>) {
    let names = ["reasoning_content", "thinking", "reasoning"];
    let known = names.iter().find_map(|name| message.get(*name).filter(|value| !value.is_null()));
    if let Some(reasoning) = known.cloned() {
        message.entry("thinking").or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".to_owned(), reasoning);
    }
}

fn invalid(param: String, expected: &str) -> TextError {
    TextError::InvalidMessage { message: format!("`{param}` {expected}"), param }
}

/// The text of a list with a single part.
fn only_text(parts: &[Value]) -> Option<&str> {
    let [part] = parts else { return None };
    part_text(part)
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

/// Marks the end of the final message while a template renders. Templates that trim text take the space off.
const CONTINUE_TAG: &str = "metrale-continues-here";

/// Appends the tag to the text of the final message: to its content, or to the last text among its parts.
pub(super) fn tag_final_text(messages: &mut [Value]) -> Result<(), TextError> {
    let text = match messages.last_mut().and_then(|message| message.get_mut("content")) {
        Some(Value::Array(parts)) => parts.iter_mut().rev().find_map(|part| match part {
            Value::String(_) => Some(part),
            part => part.get_mut("text"),
        }),
        content => content,
    };
    let Some(Value::String(text)) = text else {
        return Err(cannot_continue("needs a final message with text content"));
    };
    text.push_str(CONTINUE_TAG);
    text.push(' ');
    Ok(())
}

/// Cuts a rendered conversation where the final message ends.
pub(super) fn cut_at_tag(rendered: &mut String) -> Result<(), TextError> {
    let Some(end) = rendered.rfind(CONTINUE_TAG) else {
        return Err(cannot_continue(
            "is not possible: the chat template does not end with the final message",
        ));
    };
    let trimmed = !rendered[end + CONTINUE_TAG.len()..].starts_with(' ');
    let end = if trimmed { rendered[..end].trim_end().len() } else { end };
    rendered.truncate(end);
    Ok(())
}

fn cannot_continue(expected: &str) -> TextError {
    invalid("continue_final_message".to_owned(), expected)
}
