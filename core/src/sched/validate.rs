//! What a request must be to be taken.

use crate::error::EngineError;
use crate::exec::RunnerLimits;

use super::beams::most_blocks;
use super::request::{BeamParams, GenerateRequest};
use super::scheduler::{max_len, max_source_len};

/// Refuses what is invalid and what can never fit. `max_beams` is 0 for a runner that cannot copy pages.
pub(super) fn validate(
    request: &GenerateRequest,
    limits: &RunnerLimits,
    max_beams: usize,
) -> Result<(), EngineError> {
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
    request.sampling.validate(limits.vocab_size)?;
    match &request.beams {
        Some(beams) => validate_beams(beams, request, limits, max_beams),
        None => Ok(()),
    }
}

fn validate_beams(
    beams: &BeamParams,
    request: &GenerateRequest,
    limits: &RunnerLimits,
    max_beams: usize,
) -> Result<(), EngineError> {
    beams.validate()?;
    let refuse = |param: &str, message: String| {
        Err(EngineError::InvalidRequest { message, param: Some(param.to_owned()) })
    };
    if request.images.is_some() {
        return refuse("num_beams", "beam search cannot be combined with images".into());
    }
    let (num_beams, sampling) = (beams.num_beams, &request.sampling);
    if limits.has_recurrent_state {
        return refuse("num_beams", "beam search is not supported for a model with recurrent state".into());
    }
    if max_beams == 0 {
        return refuse("num_beams", "beam search is not supported on this device".into());
    }
    for (param, is_set) in
        [("logprobs", sampling.logprobs.is_some()), ("prompt_logprobs", sampling.prompt_logprobs.is_some())]
    {
        if is_set {
            return refuse(param, format!("{param} cannot be combined with beam search: leave it out"));
        }
    }
    if sampling.max_tokens == 0 {
        return refuse("max_tokens", "max_tokens is 0; beam search needs at least 1".into());
    }
    if num_beams > max_beams {
        return refuse(
            "num_beams",
            format!("num_beams is {num_beams}; a step can have {max_beams} sequences (--max-num-seqs)"),
        );
    }
    let num_prompt = request.prompt.len();
    let longest = max_len(limits).min(num_prompt.saturating_add(sampling.max_tokens));
    let needed = most_blocks(num_beams, num_prompt, longest, limits.block_size);
    let available = limits.num_blocks.saturating_sub(1);
    if needed > available {
        return refuse(
            "num_beams",
            format!(
                "{num_beams} beams of up to {longest} tokens can need {needed} KV pages and there are {available}: \
                 lower max_tokens or num_beams, or enlarge the KV cache"
            ),
        );
    }
    Ok(())
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
