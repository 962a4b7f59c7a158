//! Chat fields: messages brought into the one shape that templates see, tools, template variables.

use serde_json::{Map, Value, json};

use super::app::App;
use super::error::ApiError;
use super::fields::{Fields, mismatch, string};
use super::images::{self, ImagePart};
use super::text::Chat;

/// Reads what is rendered (messages, tools and template variables) and the images among it, in order.
pub(super) fn read(fields: &mut Fields, app: &App) -> Result<(Chat, Vec<ImagePart>), ApiError> {
    let messages = fields
        .array("messages")?
        .ok_or_else(|| ApiError::invalid("messages", "`messages` is missing; send at least one message"))?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages`: expected at least one message, found none"));
    }
    let mut images = Vec::new();
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(i, value)| message(&format!("messages[{i}]"), value, &mut images))
        .collect::<Result<Vec<_>, _>>()?;
    let continue_final_message = fields.boolean("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt = fields.boolean("add_generation_prompt")?;
    if continue_final_message && add_generation_prompt == Some(true) {
        let message = "`continue_final_message` and `add_generation_prompt` cannot both be true";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    let chat = Chat {
        messages,
        tools: tools(fields)?,
        documents: objects(fields, "documents")?,
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        kwargs: template_variables(fields, &app.options.chat_template_kwargs)?,
    };
    Ok((chat, images))
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

/// One message with `developer` as `system` and tool arguments as objects. Its content is a string (or null), or a list of
/// parts if there are images among them.
fn message(path: &str, value: Value, images: &mut Vec<ImagePart>) -> Result<Value, ApiError> {
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
        Some(content) => content_of(&content_path, content, images)?,
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

/// A part of a message.
enum Part {
    Text(String),
    Image(ImagePart),
}

/// A string; text parts joined by newlines; with images, the parts as templates read them.
fn content_of(path: &str, content: Value, images: &mut Vec<ImagePart>) -> Result<Value, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(Value::String(text)),
        Value::Array(parts) => parts,
        other => return Err(mismatch(path, "a string or an array of parts", &other)),
    };
    let parts = parts.into_iter().enumerate().map(|(i, part)| read_part(&format!("{path}[{i}]"), part));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        let text = |part: &Part| if let Part::Text(text) = part { text.clone() } else { String::new() };
        return Ok(Value::String(parts.iter().map(text).collect::<Vec<_>>().join("\n")));
    }
    let shown = parts.into_iter().map(|part| match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Image(image) => {
            images.push(image);
            json!({ "type": "image" })
        }
    });
    Ok(shown.collect())
}

fn read_part(path: &str, part: Value) -> Result<Part, ApiError> {
    if let Value::String(text) = part {
        return Ok(Part::Text(text));
    }
    let mut part = Fields::of(path, part)?;
    match part.string("type")?.as_deref() {
        None | Some("text") => {
            let path = part.path("text");
            part.take("text")
                .ok_or_else(|| ApiError::invalid(&path, format!("`{path}` is missing")))
                .and_then(|text| string(&path, text))
                .map(Part::Text)
        }
        Some("image_url") => images::read_part(&mut part).map(Part::Image),
        Some(kind) => {
            let note = format!("only parts of type `text` and `image_url` are, found `{kind}`");
            Err(ApiError::unsupported(part.path("type"), &note))
        }
    }
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
