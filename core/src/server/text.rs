//! What the server needs from a tokenizer and a chat template.
//!
//! What a client can correct is an `InvalidRequest`; anything else is a fault of the server.

use serde_json::{Map, Value};

use crate::error::EngineError;

/// A tokenizer with an optional chat template.
pub trait Text: Send + Sync {
    /// Text to tokens.
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EngineError>;
    /// Tokens to text.
    fn decode(&self, tokens: &[u32], skip_special_tokens: bool) -> Result<String, EngineError>;
    /// The bytes that one token stands for; may be part of a character.
    fn token_bytes(&self, token: u32) -> Vec<u8>;
    /// Whether [`Text::render_chat`] can work.
    fn has_chat_template(&self) -> bool;
    /// A conversation to the prompt text.
    fn render_chat(&self, chat: &Chat) -> Result<String, EngineError>;
    /// Starts turning the tokens that follow `prompt` into text.
    fn stream(&self, prompt: &[u32], options: &StreamOptions) -> Box<dyn TextStream>;
}

/// Turns one generation's tokens into text, piece by piece, and watches for stop strings.
pub trait TextStream: Send {
    /// The text that has become certain with this token; text that may still turn into a stop string is held back.
    fn push(&mut self, token: u32) -> Result<TextDelta, EngineError>;
    /// The text that was held back.
    fn finish(&mut self) -> Result<TextDelta, EngineError>;
}

/// A piece of output text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextDelta {
    /// The text, up to the stop string if one was found.
    pub text: String,
    /// The stop string that ends the output.
    pub stopped: Option<String>,
}

/// How output becomes text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Leave tokens like end-of-sequence out.
    pub skip_special_tokens: bool,
    /// Strings that end the output.
    pub stop: Vec<String>,
    /// Keep the stop string in the output.
    pub include_stop_str_in_output: bool,
    /// Stop strings do not count within this many tokens.
    pub min_tokens: usize,
}

/// A conversation and how to render it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// Messages in OpenAI's shape; content is a string or null, `developer` has become `system`, tool-call arguments
    /// are objects.
    pub messages: Vec<Value>,
    /// Tool definitions; empty if there are none.
    pub tools: Vec<Value>,
    /// Documents for retrieval templates; empty if there are none.
    pub documents: Vec<Value>,
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it.
    pub continue_final_message: bool,
    /// Further template variables.
    pub kwargs: Map<String, Value>,
}
