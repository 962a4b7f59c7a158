//! Chat messages to prompt text, by the model's own Jinja template.
//!
//! The environment is the one that templates are written for (Hugging Face `apply_chat_template`): whitespace
//! trimming, loop controls, Python methods on strings and dicts, `raise_exception`, `strftime_now`, a `tojson` that
//! writes what Python's `json.dumps` writes, and the `generation` tag. What a template accepts, content parts or
//! plain strings, tool arguments as objects or as text, is found out once by trying it.

mod clock;
mod indent;
mod json;
mod messages;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value, json};

use super::error::TextError;
use messages::MessageFormat;

/// A compiled chat template (or a set of them: one for requests with tools).
pub struct ChatTemplate {
    environment: Environment<'static>,
    origin: String,
    default: Variant,
    tool_use: Option<Variant>,
    /// `bos_token`, `eos_token`, …
    named_tokens: BTreeMap<String, String>,
}

/// One template of the set and what it accepts.
struct Variant {
    name: String,
    format: MessageFormat,
}

/// A conversation to render.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatPrompt<'a> {
    /// OpenAI messages.
    pub messages: &'a [Value],
    /// OpenAI tool definitions; an empty list counts as none.
    pub tools: Option<&'a [Value]>,
    /// Documents for retrieval-augmented templates.
    pub documents: Option<&'a [Value]>,
    /// End with the header of an assistant message.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`: more template variables.
    pub kwargs: Option<&'a Map<String, Value>>,
}

/// Variables that `chat_template_kwargs` may not replace.
const RESERVED: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"];

impl ChatTemplate {
    /// Finds and compiles the model's template: `explicit` (a file), else `chat_template.jinja` in `dir`, else
    /// `chat_template` in its `tokenizer_config.json`, else `gguf`. `Ok(None)` if there is none.
    pub fn find(
        explicit: Option<&Path>,
        dir: Option<&Path>,
        gguf: Option<&str>,
        named_tokens: &BTreeMap<String, String>,
    ) -> Result<Option<Self>, TextError> {
        let found = source::find(explicit, dir, gguf)?;
        found.map(|source| Self::compile(source, named_tokens.clone())).transpose()
    }

    /// Compiles a single template; `origin` names it in errors.
    pub fn from_source(
        origin: &str,
        source: &str,
        named_tokens: &BTreeMap<String, String>,
    ) -> Result<Self, TextError> {
        let source = source::TemplateSource::single(origin, source.to_owned());
        Self::compile(source, named_tokens.clone())
    }

    fn compile(
        source: source::TemplateSource,
        named_tokens: BTreeMap<String, String>,
    ) -> Result<Self, TextError> {
        let mut environment = environment();
        for (name, text) in &source.templates {
            let text = source::accept_generation_tag(text);
            let added = environment.add_template_owned(name.clone(), text.clone());
            added.map_err(|error| syntax_error(&source.origin, &text, &error))?;
        }
        let names: Vec<&str> = source.templates.iter().map(|(name, _)| name.as_str()).collect();
        let default = match names[..] {
            [only] => only,
            _ => {
                *names.iter().find(|name| **name == source::DEFAULT).ok_or_else(|| TextError::WrongType {
                    origin: source.origin.clone(),
                    key: "chat_template".to_owned(),
                    expected: "a list with an entry named \"default\"",
                    found: format!("entries named {names:?}"),
                })?
            }
        };
        let mut template = Self {
            environment,
            origin: source.origin.clone(),
            default: Variant { name: default.to_owned(), format: MessageFormat::default() },
            tool_use: None,
            named_tokens,
        };
        template.default.format = template.probe(default, &source);
        if names.len() > 1 && names.contains(&source::TOOL_USE) {
            let format = template.probe(source::TOOL_USE, &source);
            template.tool_use = Some(Variant { name: source::TOOL_USE.to_owned(), format });
        }
        Ok(template)
    }

    /// Where the template came from, for the log.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The prompt for a conversation. Tokenize it without adding special tokens: they are in it.
    pub fn render(&self, prompt: &ChatPrompt<'_>) -> Result<String, TextError> {
        if prompt.add_generation_prompt && prompt.continue_final_message {
            return Err(TextError::InvalidMessage {
                message: "`continue_final_message` and `add_generation_prompt` exclude each other".to_owned(),
                param: "continue_final_message".to_owned(),
            });
        }
        let tools = prompt.tools.filter(|tools| !tools.is_empty());
        let variant = self.tool_use.as_ref().filter(|_| tools.is_some()).unwrap_or(&self.default);
        let mut messages = variant.format.prepare(prompt.messages)?;
        if prompt.continue_final_message {
            messages::tag_final_text(&mut messages)?;
        }
        let mut variables = self.variables(prompt.kwargs)?;
        variables.insert("messages".to_owned(), Value::Array(messages));
        variables.insert("tools".to_owned(), json!(tools));
        variables.insert("documents".to_owned(), json!(prompt.documents));
        variables.insert("add_generation_prompt".to_owned(), prompt.add_generation_prompt.into());
        variables.insert("continue_final_message".to_owned(), prompt.continue_final_message.into());

        let mut text =
            self.render_variables(&variant.name, variables).map_err(|error| render_error(&error))?;
        if prompt.continue_final_message {
            messages::cut_at_tag(&mut text)?;
        }
        Ok(text)
    }

    /// The named tokens and the request's own variables.
    fn variables(&self, kwargs: Option<&Map<String, Value>>) -> Result<Map<String, Value>, TextError> {
        let mut variables: Map<String, Value> = self
            .named_tokens
            .iter()
            .map(|(name, token)| (name.clone(), Value::from(token.as_str())))
            .collect();
        for (name, value) in kwargs.into_iter().flatten() {
            if RESERVED.contains(&name.as_str()) {
                return Err(TextError::InvalidMessage {
                    message: format!(
                        "`chat_template_kwargs` must not contain `{name}`: use the request field"
                    ),
                    param: format!("chat_template_kwargs.{name}"),
                });
            }
            variables.insert(name.clone(), value.clone());
        }
        Ok(variables)
    }

    fn render_variables(&self, name: &str, variables: Map<String, Value>) -> Result<String, Error> {
        self.environment.get_template(name)?.render(minijinja::Value::from(Serde(Value::Object(variables))))
    }

    /// Finds out what a template accepts by rendering short conversations.
    fn probe(&self, name: &str, source: &source::TemplateSource) -> MessageFormat {
        let render = |messages: Value| {
            let mut variables = self.variables(None).unwrap_or_default();
            variables.insert("messages".to_owned(), messages);
            variables.insert("tools".to_owned(), Value::Null);
            variables.insert("documents".to_owned(), Value::Null);
            variables.insert("add_generation_prompt".to_owned(), Value::Bool(false));
            self.render_variables(name, variables).ok()
        };
        let source = source.templates.iter().find(|(known, _)| known == name);
        MessageFormat::probe(source.map_or("", |(_, text)| text), render)
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let format = &self.default.format;
        f.debug_struct("ChatTemplate")
            .field("origin", &self.origin)
            .field("format", format)
            .finish_non_exhaustive()
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("indent", indent::indent);
    environment.add_filter("tojson", json::to_json);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", clock::strftime_now);
    environment
}

/// Python's answer: an undefined value iterates as an empty list, `none` does not iterate.
fn is_iterable(value: &minijinja::Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Marks an error that the template raised itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RaisedException(String);

fn raise_exception(message: &minijinja::Value) -> Result<minijinja::Value, Error> {
    let raised = RaisedException(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(raised))
}

fn render_error(error: &Error) -> TextError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(RaisedException(message)) = cause.downcast_ref() {
            return TextError::Raised(message.clone());
        }
        source = cause.source();
    }
    TextError::Render { message: describe(error), line: error.line() }
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn syntax_error(origin: &str, text: &str, error: &Error) -> TextError {
    let before = error.range().and_then(|range| text.get(..range.start)).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    TextError::TemplateSyntax {
        origin: origin.to_owned(),
        line: error.line().unwrap_or(1),
        column: before[line_start..].chars().count() + 1,
        message: describe(error),
    }
}
