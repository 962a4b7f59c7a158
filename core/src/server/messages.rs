//! Chat fields: messages brought into the one shape that templates see, tools, template variables.

use serde_json::{Map, Value, json};

use super::app::App;
use super::error::ApiError;
use super::fields::{Fields, mismatch, string};
use super::text::Chat;

/// Reads what is rendered: messages, tools and template variables.
pub(super) fn read(fields: &mut Fields, app: &App) -> Result<Chat, ApiError> {
    let messages = fields
        .array("messages")?
        .ok_or_else(|| ApiError::invalid("messages", "`messages` is missing; send at least one message"))?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages`: expected at least one message, found none"));
    }
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(i, value)| message(&format!("messages[{i}]"), value))
        .collect::<Result<Vec<_>, _>>()?;
    let continue_final_message = fields.boolean("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt = fields.boolean("add_generation_prompt")?;
    if continue_final_message && add_generation_prompt == Some(true) {
        let message = "`continue_final_message` and `add_generation_prompt` cannot both be true";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    Ok(Chat {
        messages,
        tools: tools(fields)?,
        documents: objects(fields, "documents")?,
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        kwargs: template_variables(fields, &app.options.chat_template_kwargs)?,
    })
}

/// The server's variables, overridden by `reasoning_effort` and `chat_template_kwargs` of the request.
fn template_variables(
    fields: &mut Fields,
    defaults: &Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    let mut variables = defaults.clone();
    if let Some(effort) = fields.string("reasoning_effort")? {
        variables.insert("reasoning_effort".to_owned(), Value::String(effort));
    }
    variables.extend(fields.object("chat_template_kwargs")?.unwrap_or_default());
    Ok(variables)
}

/// Tools for the template; none with `tool_choice: "none"`.
fn tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let tools = objects(fields, "tools")?;
    match fields.take("tool_choice") {
        None => Ok(tools),
        Some(Value::String(choice)) if choice == "auto" => Ok(tools),
        Some(Value::String(choice)) if choice == "none" => Ok(Vec::new()),
        Some(Value::String(_) | Value::Object(_)) => {
            Err(ApiError::unsupported("tool_choice", "only `auto` and `none` are"))
        }
        Some(other) => Err(mismatch("tool_choice", "a string or an object", &other)),
    }
}

fn objects(fields: &mut Fields, name: &str) -> Result<Vec<Value>, ApiError> {
    let items = fields.array(name)?.unwrap_or_default();
    match items.iter().enumerate().find(|(_, item)| !item.is_object()) {
        Some((i, item)) => Err(mismatch(&format!("{name}[{i}]"), "an object", item)),
        None => Ok(items),
    }
}

/// One message with its content as a string (or null), `developer` as `system`, and tool arguments as objects.
fn message(path: &str, value: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::of(path, value)?;
    let role_path = fields.path("role");
    let role = fields.string("role")?.ok_or_else(|| {
        ApiError::invalid(&role_path, format!("`{role_path}` is missing; send a role such as user"))
    })?;
    let role = if role == "developer" { "system".to_owned() } else { role };
    let content_path = fields.path("content");
    let content = match fields.take("content") {
        None if role == "assistant" => Value::Null,
        None => {
            let message = format!("`{content_path}` is missing; a {role} message needs text");
            return Err(ApiError::invalid(content_path, message));
        }
        Some(content) => Value::String(text_of(&content_path, content)?),
    };
    let tool_calls = fields.array("tool_calls")?;
    let mut message = json!({ "role": role, "content": content });
    if let Some(calls) = tool_calls {
        message["tool_calls"] = calls.into_iter().map(with_argument_object).collect();
    }
    if let Value::Object(map) = &mut message {
        map.extend(fields.into_rest());
    }
    Ok(message)
}

/// A string, or text parts joined by newlines.
fn text_of(path: &str, content: Value) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(mismatch(path, "a string or an array of text parts", &other)),
    };
    let texts = parts.into_iter().enumerate().map(|(i, part)| part_text(&format!("{path}[{i}]"), part));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

fn part_text(path: &str, part: Value) -> Result<String, ApiError> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let mut part = Fields::of(path, part)?;
    let kind = part.string("type")?.unwrap_or_else(|| "text".to_owned());
    if kind != "text" {
        let note = format!("only parts of type `text` are, found `{kind}`");
        return Err(ApiError::unsupported(part.path("type"), &note));
    }
    let path = part.path("text");
    part.take("text")
        .ok_or_else(|| ApiError::invalid(&path, format!("`{path}` is missing")))
        .and_then(|text| string(&path, text))
}

/// Templates walk over arguments as objects; clients send them as JSON text.
fn with_argument_object(mut call: Value) -> Value {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(parsed) = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok())
        && parsed.is_object()
    {
        *arguments = parsed;
    }
    call
}
