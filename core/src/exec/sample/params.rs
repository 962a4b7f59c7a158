//! What a client can ask of the sampler.

use crate::error::EngineError;

/// How the next token is chosen. Semantics follow vLLM's `SamplingParams`.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Below 1e-5 the choice is greedy.
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 keeps everything.
    pub top_p: f32,
    /// Number of most likely tokens kept; 0 keeps everything.
    pub top_k: u32,
    /// Tokens less likely than `min_p` times the most likely one are dropped; 0 drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt and output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from every token that occurs in the output.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output.
    pub frequency_penalty: f32,
    /// No run of this many tokens occurs twice in prompt and output; 0 is off.
    pub no_repeat_ngram_size: usize,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes sampling repeatable; `None` draws a seed.
    pub seed: Option<u64>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// No stop token or end-of-sequence is sampled before this many tokens.
    pub min_tokens: usize,
    /// Generation ends after one of these; the token is reported as the stop reason.
    pub stop_token_ids: Vec<u32>,
    /// Sample on through the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Report the chosen token's log-probability and this many of the most likely ones.
    pub logprobs: Option<u32>,
    /// The same for every prompt position.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            no_repeat_ngram_size: 0,
            logit_bias: Vec::new(),
            seed: None,
            max_tokens: 16,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// Below this the choice is greedy.
pub(super) const GREEDY_TEMPERATURE: f32 = 1e-5;

impl SamplingParams {
    /// Whether the most likely token is taken, without chance.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_TEMPERATURE
    }

    /// Refuses values that have no meaning for a vocabulary of `vocab_size` tokens.
    pub fn validate(&self, vocab_size: usize) -> Result<(), EngineError> {
        check(
            "temperature",
            self.temperature,
            (0.0..f32::INFINITY).contains(&self.temperature),
            "0 or more",
        )?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, at most 1")?;
        check("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1")?;
        let repetition = self.repetition_penalty;
        check("repetition_penalty", repetition, repetition > 0.0 && repetition.is_finite(), "above 0")?;
        for (param, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            check(param, value, (-2.0..=2.0).contains(&value), "-2 to 2")?;
        }
        for &(token, bias) in &self.logit_bias {
            check_token("logit_bias", token, vocab_size)?;
            check("logit_bias", bias, (-100.0..=100.0).contains(&bias), "-100 to 100")?;
        }
        for &token in &self.stop_token_ids {
            check_token("stop_token_ids", token, vocab_size)?;
        }
        for (param, num) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            let num = num.unwrap_or(0);
            if num as usize > vocab_size {
                return Err(invalid(
                    param,
                    format!("{param} is {num}; the vocabulary has {vocab_size} tokens"),
                ));
            }
        }
        Ok(())
    }
}

fn check(param: &str, value: f32, holds: bool, expected: &str) -> Result<(), EngineError> {
    if holds { Ok(()) } else { Err(invalid(param, format!("{param} is {value}; expected {expected}"))) }
}

fn check_token(param: &str, token: u32, vocab_size: usize) -> Result<(), EngineError> {
    if (token as usize) < vocab_size {
        return Ok(());
    }
    Err(invalid(
        param,
        format!("{param} names token {token}; the vocabulary has tokens 0 to {}", vocab_size - 1),
    ))
}

fn invalid(param: &str, message: String) -> EngineError {
    EngineError::InvalidRequest { message, param: Some(param.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meaningless_value_is_refused_by_name() {
        let ok = SamplingParams::default();
        ok.validate(10).unwrap();
        let bad = [
            ("temperature", SamplingParams { temperature: -0.1, ..ok.clone() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..ok.clone() }),
            ("top_p", SamplingParams { top_p: 0.0, ..ok.clone() }),
            ("min_p", SamplingParams { min_p: 1.5, ..ok.clone() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..ok.clone() }),
            ("presence_penalty", SamplingParams { presence_penalty: 2.5, ..ok.clone() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(10, 0.0)], ..ok.clone() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(1, f32::INFINITY)], ..ok.clone() }),
            ("stop_token_ids", SamplingParams { stop_token_ids: vec![10], ..ok.clone() }),
            ("logprobs", SamplingParams { logprobs: Some(11), ..ok.clone() }),
        ];
        for (name, params) in bad {
            let error = params.validate(10).unwrap_err();
            assert!(
                matches!(&error, EngineError::InvalidRequest { param: Some(p), .. } if p == name),
                "{name}: {error}"
            );
        }
    }
}
