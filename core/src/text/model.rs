//! Everything the server needs to talk text with one model.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::chat_template::{ChatPrompt, ChatTemplate};
use super::error::TextError;
use super::generation_config::{GenerationConfig, GenerationConfigSource};
use super::tokenizer::{GgufVocab, Tokenizer};

/// The operator's choices about text.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// `--chat-template`: a file that replaces the model's template.
    pub chat_template: Option<PathBuf>,
    /// `--generation-config`.
    pub generation_config: GenerationConfigSource,
    /// `--override-generation-config`, parsed.
    pub override_generation_config: Option<Map<String, Value>>,
}

/// Tokenizer, chat template and generation defaults of a loaded model.
#[derive(Debug)]
pub struct TextModel {
    tokenizer: Option<Tokenizer>,
    chat_template: Option<ChatTemplate>,
    generation: GenerationConfig,
    vocab_size: usize,
}

impl TextModel {
    /// Loads from a Hugging Face directory. `model_config` is config.json, `vocab_size` the rows of the embedding.
    /// A directory without tokenizer.json gives a model that serves token ids only.
    pub fn from_dir(
        dir: &Path,
        model_config: &Value,
        vocab_size: usize,
        options: &TextOptions,
    ) -> Result<Self, TextError> {
        let path = dir.join("tokenizer.json");
        let tokenizer = if path.exists() {
            Some(Tokenizer::from_dir(dir)?)
        } else if let Some(other) = other_tokenizer(dir) {
            return Err(TextError::Tokenizer {
                origin: dir.display().to_string(),
                message: format!(
                    "there is {other} but no tokenizer.json; write one with transformers: \
                     AutoTokenizer.from_pretrained(dir).save_pretrained(dir)"
                ),
            });
        } else {
            tracing::warn!("{} has no tokenizer.json: serving token ids only", dir.display());
            None
        };
        let generation = GenerationConfig::load(
            &options.generation_config,
            Some(dir),
            model_config,
            options.override_generation_config.as_ref(),
        )?;
        Self::assemble(tokenizer, Some(dir), None, generation, vocab_size, options)
    }

    /// Loads from GGUF metadata. `model_config` holds what config.json would; it may be null.
    pub fn from_gguf(
        vocab: &GgufVocab,
        model_config: &Value,
        vocab_size: usize,
        options: &TextOptions,
    ) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::from_gguf(vocab)?;
        let generation = GenerationConfig::load(
            &options.generation_config,
            None,
            model_config,
            options.override_generation_config.as_ref(),
        )?;
        let template = vocab.chat_template.as_deref();
        Self::assemble(Some(tokenizer), None, template, generation, vocab_size, options)
    }

    /// A model without a tokenizer.
    #[must_use]
    pub fn token_ids_only(generation: GenerationConfig, vocab_size: usize) -> Self {
        Self { tokenizer: None, chat_template: None, generation, vocab_size }
    }

    fn assemble(
        tokenizer: Option<Tokenizer>,
        dir: Option<&Path>,
        gguf_template: Option<&str>,
        mut generation: GenerationConfig,
        vocab_size: usize,
        options: &TextOptions,
    ) -> Result<Self, TextError> {
        let Some(tokenizer) = tokenizer else { return Ok(Self::token_ids_only(generation, vocab_size)) };
        check_vocab(&tokenizer, vocab_size)?;
        generation.add_eos(tokenizer.eos());
        let explicit = options.chat_template.as_deref();
        let chat_template = ChatTemplate::find(explicit, dir, gguf_template, tokenizer.named_tokens())?;
        Ok(Self { tokenizer: Some(tokenizer), chat_template, generation, vocab_size })
    }

    /// The tokenizer, if the model has one.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The chat template, if the model has one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }

    /// Defaults for requests; its `eos_token_id` holds every end-of-sequence token known for the model.
    #[must_use]
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// The tokenizer for a request whose field `wanted` holds (or asks for) text.
    pub fn require_tokenizer(&self, wanted: &'static str) -> Result<&Tokenizer, TextError> {
        self.tokenizer.as_ref().ok_or(TextError::NoTokenizer { wanted })
    }

    /// Token ids of a request's text, all of which the model has. `wanted` names the request field.
    pub fn encode(
        &self,
        text: &str,
        add_special_tokens: bool,
        wanted: &'static str,
    ) -> Result<Vec<u32>, TextError> {
        let tokenizer = self.require_tokenizer(wanted)?;
        let ids = tokenizer.encode(text, add_special_tokens)?;
        match ids.iter().find(|id| **id as usize >= self.vocab_size) {
            None => Ok(ids),
            Some(&id) => Err(TextError::TokenOutOfRange {
                token: tokenizer.id_to_token(id).unwrap_or_default().to_owned(),
                id,
                vocab_size: self.vocab_size,
            }),
        }
    }

    /// The prompt text of a conversation.
    pub fn render_chat(&self, prompt: &ChatPrompt<'_>) -> Result<String, TextError> {
        self.require_tokenizer("messages")?;
        self.chat_template.as_ref().ok_or(TextError::NoChatTemplate)?.render(prompt)
    }

    /// The prompt of a conversation as token ids.
    pub fn encode_chat(&self, prompt: &ChatPrompt<'_>) -> Result<Vec<u32>, TextError> {
        self.encode(&self.render_chat(prompt)?, false, "messages")
    }
}

/// A vocabulary file that is not read, if one is there.
fn other_tokenizer(dir: &Path) -> Option<&'static str> {
    [
        "tokenizer.model",
        "sentencepiece.bpe.model",
        "spiece.model",
        "vocab.json",
        "vocab.txt",
        "tiktoken.model",
    ]
    .into_iter()
    .find(|name| dir.join(name).exists())
}

/// Added tokens may lie outside the embedding (they are refused when a text uses one), the vocabulary may not.
fn check_vocab(tokenizer: &Tokenizer, vocab_size: usize) -> Result<(), TextError> {
    match tokenizer.max_base_token() {
        Some((id, token)) if id as usize >= vocab_size => {
            Err(TextError::VocabMismatch { max_token_id: id, token: token.to_owned(), vocab_size })
        }
        _ => Ok(()),
    }
}
