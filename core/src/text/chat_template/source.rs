//! Where a model keeps its chat template.

use std::path::Path;

use serde_json::Value;

use crate::text::error::{TextError, parse_json, read_optional_text, read_text, wrong_type};

/// Name of the template for requests without tools.
pub(super) const DEFAULT: &str = "default";
/// Name of the template for requests with tools.
pub(super) const TOOL_USE: &str = "tool_use";

/// Named templates, never empty, and the file or key they came from.
#[derive(Debug)]
pub(super) struct TemplateSource {
    pub(super) origin: String,
    pub(super) templates: Vec<(String, String)>,
}

impl TemplateSource {
    pub(super) fn single(origin: impl ToString, text: String) -> Self {
        Self { origin: origin.to_string(), templates: vec![(DEFAULT.to_owned(), text)] }
    }
}

/// The first of: the explicit file, `chat_template.jinja`, `tokenizer_config.json`, the GGUF key.
pub(super) fn find(
    explicit: Option<&Path>,
    dir: Option<&Path>,
    gguf: Option<&str>,
) -> Result<Option<TemplateSource>, TextError> {
    if let Some(path) = explicit {
        return Ok(Some(TemplateSource::single(path.display(), read_text(path)?)));
    }
    if let Some(dir) = dir {
        let path = dir.join("chat_template.jinja");
        if let Some(text) = read_optional_text(&path)? {
            return Ok(Some(TemplateSource::single(path.display(), text)));
        }
        if let Some(found) = from_tokenizer_config(&dir.join("tokenizer_config.json"))? {
            return Ok(Some(found));
        }
    }
    Ok(gguf.map(|text| TemplateSource::single("tokenizer.chat_template (GGUF)", text.to_owned())))
}

/// `chat_template` is one template or a list of `{name, template}`.
fn from_tokenizer_config(path: &Path) -> Result<Option<TemplateSource>, TextError> {
    let Some(text) = read_optional_text(path)? else { return Ok(None) };
    let config = parse_json(path, &text)?;
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(TemplateSource::single(path.display(), text.clone()))),
        Some(Value::Array(entries)) if !entries.is_empty() => {
            let templates = entries.iter().map(|entry| {
                let name = entry.get("name").and_then(Value::as_str);
                let template = entry.get("template").and_then(Value::as_str);
                name.zip(template).map(|(name, template)| (name.to_owned(), template.to_owned())).ok_or_else(
                    || {
                        wrong_type(
                            path.display(),
                            "chat_template",
                            "a list of {name, template} objects",
                            entry,
                        )
                    },
                )
            });
            let templates = templates.collect::<Result<_, _>>()?;
            Ok(Some(TemplateSource { origin: path.display().to_string(), templates }))
        }
        Some(other) => {
            Err(wrong_type(path.display(), "chat_template", "a string or a list of templates", other))
        }
    }
}

/// `{% generation %}` marks assistant text for training; here it is a block without effect.
pub(super) fn accept_generation_tag(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(close + 2);
        let inner = &tag[2..tag.len() - 2];
        let keyword = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        match keyword {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => {
                // Only the opening is passed on: a string inside the tag may contain "%}" and another tag.
                out.push_str("{%");
                rest = &rest[open + 2..];
                continue;
            }
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tag_becomes_a_plain_block() {
        let template = "{%- if a -%}{% generation %}x{%- endgeneration -%}{% endif %}{{ '{% y' }}";
        assert_eq!(
            accept_generation_tag(template),
            "{%- if a -%}{% if true %}x{%- endif -%}{% endif %}{{ '{% y' }}"
        );
    }

    #[test]
    fn the_explicit_file_goes_before_the_directory_and_the_directory_before_gguf() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let explicit = dir.join("explicit.txt");
        let config = r#"{"chat_template": [{"name": "default", "template": "C"}, {"name": "tool_use", "template": "T"}]}"#;
        std::fs::write(&explicit, "E").unwrap();
        std::fs::write(dir.join("chat_template.jinja"), "J").unwrap();
        std::fs::write(dir.join("tokenizer_config.json"), config).unwrap();
        let found = |explicit: Option<&Path>| {
            let source = find(explicit, Some(dir), Some("G")).unwrap().unwrap();
            source.templates.into_iter().map(|(_, text)| text).collect::<String>()
        };
        assert_eq!(found(Some(&explicit)), "E");
        assert_eq!(found(None), "J");
        std::fs::remove_file(dir.join("chat_template.jinja")).unwrap();
        assert_eq!(found(None), "CT");
        std::fs::remove_file(dir.join("tokenizer_config.json")).unwrap();
        assert_eq!(found(None), "G");
        assert!(find(None, Some(dir), None).unwrap().is_none());
    }
}
