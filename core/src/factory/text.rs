//! The model's text layer as the server sees it.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::config::EngineConfig;
use crate::error::EngineError;
use crate::server::{Chat, SamplingDefaults, StreamOptions, Text, TextDelta, TextStream};
use crate::text::{
    ChatPrompt, GenerationConfigSource, GgufVocab, IncrementalDetokenizer, StopMatcher, TextError, TextModel,
    TextOptions, Tokenizer,
};
use crate::weights::ModelSource;

/// Loads tokenizer, chat template and generation defaults.
pub(super) fn load(
    config: &EngineConfig,
    source: &ModelSource,
    vocab_size: usize,
) -> anyhow::Result<TextModel> {
    let options = TextOptions {
        chat_template: config.chat_template.clone(),
        generation_config: match config.generation_config.as_str() {
            "auto" => GenerationConfigSource::Auto,
            "none" | "vllm" => GenerationConfigSource::Vllm,
            directory => GenerationConfigSource::Dir(directory.into()),
        },
        override_generation_config: Some(config.override_generation_config.0.clone()),
    };
    let model_config: Json =
        source.config().map_or(Ok(Json::Null), |files| serde_json::from_str(&files.config))?;
    let without_tokenizer = config.skip_tokenizer_init;
    if let Some(directory) = config.tokenizer.as_deref().filter(|_| !without_tokenizer) {
        return Ok(TextModel::from_dir(Path::new(directory), &model_config, vocab_size, &options)?);
    }
    match source.headers().gguf() {
        Some(metadata) if !without_tokenizer => Ok(TextModel::from_gguf(
            &GgufVocab::from_metadata(metadata)?,
            &model_config,
            vocab_size,
            &options,
        )?),
        None if !without_tokenizer => {
            Ok(TextModel::from_dir(source.path(), &model_config, vocab_size, &options)?)
        }
        _ => {
            let directory = source.config().map(|_| source.path());
            let generation = crate::text::GenerationConfig::load(
                &options.generation_config,
                directory,
                &model_config,
                options.override_generation_config.as_ref(),
            )?;
            Ok(TextModel::token_ids_only(generation, vocab_size))
        }
    }
}

/// Sampling defaults of a model. Translations are not left to chance unless the model or the operator says so.
pub(super) fn defaults(text: &TextModel, translates: bool) -> SamplingDefaults {
    let generation = text.generation();
    let temperature = generation.temperature.or(translates.then_some(0.0));
    SamplingDefaults {
        temperature,
        top_p: generation.top_p,
        top_k: generation.top_k,
        min_p: generation.min_p,
        repetition_penalty: generation.repetition_penalty,
        max_new_tokens: generation.max_new_tokens,
        no_repeat_ngram_size: generation.no_repeat_ngram_size,
    }
}

/// The server's view; `None` for a model without a tokenizer.
pub(super) fn served(text: TextModel) -> Option<Arc<dyn Text>> {
    text.tokenizer().is_some().then(|| Arc::new(Served(text)) as Arc<dyn Text>)
}

struct Served(TextModel);

fn error(error: TextError) -> EngineError {
    if error.is_request_error() {
        EngineError::InvalidRequest { message: error.to_string(), param: error.param().map(str::to_owned) }
    } else {
        EngineError::Internal(error.to_string())
    }
}

impl Served {
    fn tokenizer(&self, wanted: &'static str) -> Result<&Tokenizer, EngineError> {
        self.0.require_tokenizer(wanted).map_err(error)
    }
}

impl Text for Served {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EngineError> {
        self.0.encode(text, add_special_tokens, "prompt").map_err(error)
    }

    fn decode(&self, tokens: &[u32], skip_special_tokens: bool) -> Result<String, EngineError> {
        Ok(self.tokenizer("tokens")?.decode(tokens, skip_special_tokens))
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.0.tokenizer().map_or_else(Vec::new, |t| t.token_bytes(token).to_vec())
    }

    fn has_chat_template(&self) -> bool {
        self.0.chat_template().is_some()
    }

    fn render_chat(&self, chat: &Chat) -> Result<String, EngineError> {
        let prompt = ChatPrompt {
            messages: &chat.messages,
            tools: (!chat.tools.is_empty()).then_some(chat.tools.as_slice()),
            documents: (!chat.documents.is_empty()).then_some(chat.documents.as_slice()),
            add_generation_prompt: chat.add_generation_prompt,
            continue_final_message: chat.continue_final_message,
            kwargs: Some(&chat.kwargs),
        };
        self.0.render_chat(&prompt).map_err(error)
    }

    fn stream(&self, prompt: &[u32], options: &StreamOptions) -> Box<dyn TextStream> {
        let stops = StopMatcher::new(options.stop.clone(), options.include_stop_str_in_output);
        let detokenizer = self.0.tokenizer().map(|tokenizer| {
            // Behind special tokens alone, such as the language of a translation, a text of its own starts.
            let starts = prompt.iter().all(|&token| tokenizer.is_special(token));
            let new = if starts { IncrementalDetokenizer::new } else { IncrementalDetokenizer::continuing };
            new(tokenizer, options.skip_special_tokens)
        });
        Box::new(Stream {
            detokenizer,
            stops: stops.map_err(error),
            min_tokens: options.min_tokens,
            num_tokens: 0,
        })
    }
}

struct Stream {
    detokenizer: Option<IncrementalDetokenizer>,
    stops: Result<StopMatcher, EngineError>,
    min_tokens: usize,
    num_tokens: usize,
}

impl Stream {
    fn pass(&mut self, text: &str) -> Result<TextDelta, EngineError> {
        // Stop strings do not count yet: text passes as it is.
        if self.num_tokens <= self.min_tokens && self.min_tokens > 0 {
            return Ok(TextDelta { text: text.to_owned(), stopped: None });
        }
        let stops = self.stops.as_mut().map_err(|e| e.clone())?;
        let output = stops.push(text);
        Ok(TextDelta { text: output.text, stopped: output.matched })
    }
}

impl TextStream for Stream {
    fn push(&mut self, token: u32) -> Result<TextDelta, EngineError> {
        self.num_tokens += 1;
        let text = self.detokenizer.as_mut().map_or_else(String::new, |d| d.push(token).to_owned());
        self.pass(&text)
    }

    fn finish(&mut self) -> Result<TextDelta, EngineError> {
        let text = self.detokenizer.as_mut().map_or_else(String::new, |d| d.finish().to_owned());
        let mut delta = self.pass(&text)?;
        if delta.stopped.is_none() {
            delta.text.push_str(&self.stops.as_mut().map_err(|e| e.clone())?.finish());
        }
        Ok(delta)
    }
}
