//! Renderings beside those of transformers, recorded by `tests/parity/chat_templates.py`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::*;

/// Renderings that say more about Python than about the template: a dict's method `items` hides its key, and what is
/// added to text marked safe is escaped as HTML.
const PYTHON_ONLY: [(&str, &str); 4] = [
    ("CohereForAI-c4ai-command-r-plus-tool_use.jinja", "tools and system"),
    ("meetkai-functionary-medium-v3.1.jinja", "tools"),
    ("meetkai-functionary-medium-v3.1.jinja", "tools and system"),
    ("meetkai-functionary-medium-v3.1.jinja", "tool call and result"),
];

#[derive(Deserialize)]
struct Template {
    renderings: BTreeMap<String, Rendering>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rendering {
    Text(String),
    Error(String),
}

/// One conversation of `conversations.json`.
#[derive(Clone, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Conversation {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    kwargs: Map<String, Value>,
    add_generation_prompt: bool,
    continue_final_message: bool,
}

impl Conversation {
    fn render(&self, template: &ChatTemplate) -> Result<String, TextError> {
        template.render(&ChatPrompt {
            messages: &self.messages,
            tools: self.tools.as_deref(),
            documents: None,
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            kwargs: Some(&self.kwargs),
        })
    }

    /// As clients send it: the arguments of tool calls are JSON text.
    fn with_arguments_as_text(mut self) -> Self {
        for message in &mut self.messages {
            let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
            for call in calls.into_iter().flatten() {
                let arguments = call.pointer_mut("/function/arguments").unwrap();
                *arguments = Value::String(arguments.to_string());
            }
        }
        self
    }

    /// The same with each content as a list of one text part.
    fn with_parts(mut self) -> Self {
        for message in &mut self.messages {
            let content = message.get_mut("content").unwrap();
            *content = json!([{"type": "text", "text": content.take()}]);
        }
        self
    }
}

fn recording() -> BTreeMap<String, Template> {
    let file = std::fs::File::open(root("tests/parity/data/chat_templates.json.gz")).unwrap();
    serde_json::from_reader(flate2::read::GzDecoder::new(file)).unwrap()
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read<T: serde::de::DeserializeOwned>(path: &str) -> T {
    serde_json::from_slice(&std::fs::read(root(path)).unwrap()).unwrap()
}

/// A template with the recording's tokens and clock.
fn load(path: &Path) -> ChatTemplate {
    let source = std::fs::read_to_string(path).unwrap_or_else(|error| {
        panic!("{}: {error}; fetch it: python3 tests/parity/fetch.py vocab-suites", path.display())
    });
    let tokens = [("bos_token", "<bos>"), ("eos_token", "<eos>")];
    let tokens = tokens.map(|(name, token)| (name.to_owned(), token.to_owned())).into();
    let mut template = ChatTemplate::from_source("recorded", &source, &tokens).unwrap();
    template.environment.add_function("strftime_now", |format: &str| format!("date({format})"));
    template
}

/// What differs from the recording of one template, and the number of texts compared.
fn differences(name: &str, template: &ChatTemplate, recorded: &Template) -> (Vec<String>, usize) {
    let conversations: BTreeMap<String, Conversation> = read("tests/parity/data/conversations.json");
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (title, conversation) in conversations {
        if PYTHON_ONLY.contains(&(name, title.as_str())) {
            continue;
        }
        let conversation = conversation.with_arguments_as_text();
        match &recorded.renderings[&title] {
            Rendering::Text(expected) => {
                for (form, conversation) in
                    [("text", conversation.clone()), ("parts", conversation.with_parts())]
                {
                    compared += 1;
                    let found = conversation.render(template);
                    if !found.as_ref().is_ok_and(|found| found == expected) {
                        wrong.push(format!(
                            "{name}, {title}, as {form}:\n  expected {expected:?}\n  found    {found:?}"
                        ));
                    }
                }
            }
            // What the template raises, it raises here, too. Other errors are Python's own.
            Rendering::Error(error) => {
                if let Some(message) = error.strip_prefix("TemplateError: ") {
                    compared += 1;
                    match conversation.render(template) {
                        Err(TextError::Raised(found)) if found == message => {}
                        found => wrong.push(format!("{name}, {title}: expected {error:?}, found {found:?}")),
                    }
                }
            }
        }
    }
    (wrong, compared)
}

#[test]
fn committed_templates_render_as_with_transformers() {
    let recording = recording();
    let mut files = 0;
    for entry in std::fs::read_dir(root("tests/parity/data/chat_templates")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let (wrong, compared) = differences(name, &load(&path), &recording[name]);
        assert!(wrong.is_empty(), "{} of {compared} renderings differ\n{}", wrong.len(), wrong.join("\n"));
        files += 1;
    }
    assert!(files >= 2, "only {files} templates");
}

#[test]
fn a_final_message_is_continued_where_it_ends() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}";
    let template = ChatTemplate::from_source("test", source, &BTreeMap::new()).unwrap();
    let rendered = |text: &str| {
        let messages =
            [json!({"role": "user", "content": "e"}), json!({"role": "assistant", "content": text})];
        template.render(&ChatPrompt {
            messages: &messages,
            continue_final_message: true,
            ..Default::default()
        })
    };
    // The text occurs again in what the template writes behind it.
    assert_eq!(rendered("e").unwrap(), "<user>e<end><assistant>e");
    assert_eq!(rendered(" two words ").unwrap(), "<user>e<end><assistant>two words");
    assert_eq!(rendered("").unwrap(), "<user>e<end><assistant>");
}

#[test]
fn indent_keeps_the_last_newline() {
    let template = "{{ '{\n'|indent(4, first=true) }}|{{ 'a\n\nb'|indent }}|{{ 'a\nb'|indent(width='> ') }}";
    let template = ChatTemplate::from_source("test", template, &BTreeMap::new()).unwrap();
    assert_eq!(template.render(&ChatPrompt::default()).unwrap(), "    {\n|a\n\n    b|a\n> b");
}

#[test]
#[ignore = "wants downloads: make test-models"]
fn templates_render_as_with_transformers() {
    let recording = recording();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (name, recorded) in &recording {
        let path = root(".models/vocab-suites/templates").join(name);
        if root("tests/parity/data/chat_templates").join(name).exists() {
            continue;
        }
        let template = load(&path);
        let (differences, texts) = differences(name, &template, recorded);
        wrong.extend(differences);
        compared += texts;
    }
    assert!(wrong.is_empty(), "{} of {compared} renderings differ\n{}", wrong.len(), wrong.join("\n"));
}
