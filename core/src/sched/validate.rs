//! What a request must be to be taken.

use crate::error::EngineError;
use crate::exec::RunnerLimits;

use super::request::GenerateRequest;
use super::scheduler::{max_len, max_source_len};

/// Refuses what is invalid and what can never fit.
pub(super) fn validate(request: &GenerateRequest, limits: &RunnerLimits) -> Result<(), EngineError> {
    let prompt_error =
        |message: String| EngineError::InvalidRequest { message, param: Some("prompt".to_owned()) };
    let num_prompt = request.prompt.len();
    if num_prompt == 0 {
        return Err(prompt_error("the prompt is empty; expected at least one token".to_owned()));
    }
    if let Some(token) = request.prompt.iter().find(|&&token| token as usize >= limits.vocab_size) {
        let vocab_size = limits.vocab_size;
        return Err(prompt_error(format!(
            "the prompt has token {token}; the vocabulary has {vocab_size} tokens"
        )));
    }
    let max_len = max_len(limits);
    // Scoring a prompt (no output) may fill the context to the last token.
    if num_prompt + request.sampling.max_tokens.min(1) > max_len {
        return Err(prompt_error(format!(
            "the prompt has {num_prompt} tokens; prompt and output together can have {max_len} \
             (context length {}, KV cache {} tokens): shorten the prompt or enlarge the KV cache",
            limits.max_model_len,
            limits.num_blocks.saturating_sub(1) * limits.block_size
        )));
    }
    validate_source(request.source.as_deref(), limits)?;
    request.sampling.validate(limits.vocab_size)
}

fn validate_source(source: Option<&[u32]>, limits: &RunnerLimits) -> Result<(), EngineError> {
    let refuse =
        |message: String| Err(EngineError::InvalidRequest { message, param: Some("source".to_owned()) });
    let (source, max_len) = match (source, max_source_len(limits)) {
        (None, None) => return Ok(()),
        (Some(_), None) => {
            return refuse(
                "the model has no encoder and reads no source: put everything in the prompt".into(),
            );
        }
        (None, Some(_)) => {
            return refuse("the model has an encoder: a source is needed besides the target's start".into());
        }
        (Some(source), Some(max_len)) => (source, max_len),
    };
    if source.is_empty() {
        return refuse("the source is empty; expected at least one token".to_owned());
    }
    if let Some(token) = source.iter().find(|&&token| token as usize >= limits.vocab_size) {
        let vocab_size = limits.vocab_size;
        return refuse(format!("the source has token {token}; the vocabulary has {vocab_size} tokens"));
    }
    let found = source.len();
    if found > max_len {
        return refuse(format!(
            "the source has {found} tokens; it can have {max_len}: translate it in parts"
        ));
    }
    Ok(())
}
