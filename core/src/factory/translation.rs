//! How a loaded model translates.

use anyhow::{Context, bail};
use serde_json::Value as Json;

use super::runner::ModelFacts;
use crate::config::EngineConfig;
use crate::text::TextModel;
use crate::translation::{AUTO, Translation};
use crate::weights::ModelSource;

/// What the plugin, the tokenizer and the flags say; nothing for a model that does not translate.
pub(super) fn load(
    config: &EngineConfig,
    source: &ModelSource,
    facts: &ModelFacts,
    text: &TextModel,
) -> anyhow::Result<Option<Translation>> {
    let flags = [("--src-lang", &config.src_lang), ("--tgt-lang", &config.tgt_lang)];
    let translation = match text.tokenizer() {
        Some(tokenizer) => Translation::new(&facts.info, tokenizer)?,
        None => None,
    };
    let Some(mut translation) = translation else {
        if let Some((flag, _)) = flags.iter().find(|(_, value)| value.is_some()) {
            bail!("{flag}: this model does not translate, or has no tokenizer; leave the flag out");
        }
        return Ok(None);
    };
    if has_trailing_language(source)? {
        translation = translation.with_trailing_source_language();
    }
    translation.default_num_beams = text.generation().num_beams.unwrap_or(1).max(1);
    let find = |flag: &str, name: &Option<String>| {
        let name = name.as_deref().filter(|name| *name != AUTO);
        let found = name.map(|name| translation.languages.find(name).cloned());
        found.transpose().with_context(|| flag.to_owned())
    };
    let (default_source, default_target) =
        (find("--src-lang", &config.src_lang)?, find("--tgt-lang", &config.tgt_lang)?);
    tracing::info!(languages = translation.languages.len(), "translates");
    (translation.default_source, translation.default_target) = (default_source, default_target);
    Ok(Some(translation))
}

/// `legacy_behaviour` in tokenizer_config.json: the source's language stands after its text.
fn has_trailing_language(source: &ModelSource) -> anyhow::Result<bool> {
    let path = source.path().join("tokenizer_config.json");
    if !path.is_file() {
        return Ok(false);
    }
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let config: Json = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(config["legacy_behaviour"] == true)
}
