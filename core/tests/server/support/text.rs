//! Bytes as tokens, with one begin and one end token.

use metrale_core::EngineError;
use metrale_core::server::{Chat, StreamOptions, Text, TextDelta, TextStream};

pub(crate) const EOS: u32 = 256;
pub(crate) const BOS: u32 = 257;
pub(crate) const VOCAB_SIZE: usize = 258;

pub(crate) struct ByteText;

/// The tokens of a text, without special ones.
pub(crate) fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

impl Text for ByteText {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EngineError> {
        Ok(add_special_tokens.then_some(BOS).into_iter().chain(bytes(text)).collect())
    }

    fn decode(&self, tokens: &[u32], skip_special_tokens: bool) -> Result<String, EngineError> {
        let shown = tokens.iter().filter(|&&token| !skip_special_tokens || token < EOS);
        let bytes: Vec<u8> = shown.flat_map(|&token| self.token_bytes(token)).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        match token {
            EOS => b"<eos>".to_vec(),
            BOS => b"<bos>".to_vec(),
            byte => vec![byte as u8],
        }
    }

    fn has_chat_template(&self) -> bool {
        true
    }

    fn render_chat(&self, chat: &Chat) -> Result<String, EngineError> {
        let mut prompt = String::new();
        if let Some(style) = chat.kwargs.get("style") {
            prompt.push_str(&format!("style={style};"));
        }
        for tool in &chat.tools {
            prompt.push_str(&format!("tool={};", tool["function"]["name"].as_str().unwrap_or("?")));
        }
        for message in &chat.messages {
            let role = message["role"].as_str().unwrap_or_default();
            if role == "wizard" {
                let message = "the template does not know the role wizard".to_owned();
                return Err(EngineError::InvalidRequest { message, param: Some("messages".to_owned()) });
            }
            prompt.push_str(&format!("{role}:{};", message["content"].as_str().unwrap_or_default()));
        }
        if chat.add_generation_prompt {
            prompt.push_str("assistant:");
        }
        Ok(prompt)
    }

    fn stream(&self, _prompt: &[u32], options: &StreamOptions) -> Box<dyn TextStream> {
        Box::new(ByteStream { options: options.clone(), pending: Vec::new(), held: String::new() })
    }
}

struct ByteStream {
    options: StreamOptions,
    /// Bytes of an incomplete character.
    pending: Vec<u8>,
    /// Text that may still become a stop string.
    held: String,
}

impl TextStream for ByteStream {
    fn push(&mut self, token: u32) -> Result<TextDelta, EngineError> {
        if token < EOS || !self.options.skip_special_tokens {
            self.pending.extend(ByteText.token_bytes(token));
        }
        if let Ok(text) = std::str::from_utf8(&self.pending) {
            self.held.push_str(text);
            self.pending.clear();
        }
        for stop in &self.options.stop {
            if let Some(start) = self.held.find(stop.as_str()) {
                let end = if self.options.include_stop_str_in_output { start + stop.len() } else { start };
                return Ok(TextDelta { text: self.held[..end].to_owned(), stopped: Some(stop.clone()) });
            }
        }
        let longest = self.options.stop.iter().map(String::len).max().unwrap_or(1);
        let mut certain = self.held.len().saturating_sub(longest - 1);
        while !self.held.is_char_boundary(certain) {
            certain -= 1;
        }
        let text = self.held.drain(..certain).collect();
        Ok(TextDelta { text, stopped: None })
    }

    fn finish(&mut self) -> Result<TextDelta, EngineError> {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.pending)));
        Ok(TextDelta { text, stopped: None })
    }
}
