//! Sampling fields of a request, with ranges checked, over the model's defaults.

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, integer, mismatch};
use crate::sched::SamplingParams;

/// Sampling values that a request overrides one by one; `None` leaves the engine's neutral value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// See [`SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplingParams::top_k`].
    pub top_k: Option<u32>,
    /// See [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplingParams::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// Most tokens to generate when a request does not say.
    pub max_new_tokens: Option<usize>,
    /// See [`SamplingParams::no_repeat_ngram_size`].
    pub no_repeat_ngram_size: Option<usize>,
}

impl SamplingDefaults {
    /// Parameters of a request that sets nothing.
    #[must_use]
    pub fn params(&self) -> SamplingParams {
        let neutral = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(neutral.temperature),
            top_p: self.top_p.unwrap_or(neutral.top_p),
            top_k: self.top_k.unwrap_or(neutral.top_k),
            min_p: self.min_p.unwrap_or(neutral.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(neutral.repetition_penalty),
            no_repeat_ngram_size: self.no_repeat_ngram_size.unwrap_or(neutral.no_repeat_ngram_size),
            ..neutral
        }
    }
}

/// Reads every sampling field but `max_tokens` and the log-probabilities, whose names differ between endpoints.
pub(super) fn read(
    fields: &mut Fields,
    defaults: &SamplingDefaults,
    vocab_size: usize,
) -> Result<SamplingParams, ApiError> {
    let base = defaults.params();
    let params = SamplingParams {
        temperature: ranged(fields, "temperature", base.temperature, "0 or more", |t| t >= 0.0)?,
        top_p: ranged(fields, "top_p", base.top_p, "above 0 and at most 1", |p| p > 0.0 && p <= 1.0)?,
        top_k: top_k(fields)?.unwrap_or(base.top_k),
        min_p: ranged(fields, "min_p", base.min_p, "from 0 to 1", |p| (0.0..=1.0).contains(&p))?,
        repetition_penalty: ranged(fields, "repetition_penalty", base.repetition_penalty, "above 0", |p| {
            p > 0.0
        })?,
        presence_penalty: ranged(fields, "presence_penalty", 0.0, "from -2 to 2", |p| p.abs() <= 2.0)?,
        frequency_penalty: ranged(fields, "frequency_penalty", 0.0, "from -2 to 2", |p| p.abs() <= 2.0)?,
        logit_bias: logit_bias(fields, vocab_size)?,
        seed: fields.integer("seed")?.map(|seed| seed as u64),
        no_repeat_ngram_size: count(fields, "no_repeat_ngram_size", 0)?.unwrap_or(base.no_repeat_ngram_size),
        min_tokens: count(fields, "min_tokens", 0)?.unwrap_or(0),
        stop_token_ids: token_ids(fields, "stop_token_ids", vocab_size)?.unwrap_or_default(),
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        ..base
    };
    Ok(params)
}

/// A whole number of at least `least`.
pub(super) fn count(fields: &mut Fields, name: &str, least: i64) -> Result<Option<usize>, ApiError> {
    let Some(value) = fields.integer(name)? else { return Ok(None) };
    match usize::try_from(value) {
        Ok(count) if value >= least => Ok(Some(count)),
        _ => {
            let path = fields.path(name);
            let message = format!("`{path}`: expected an integer of at least {least}, found {value}");
            Err(ApiError::invalid(path, message))
        }
    }
}

/// A list of token ids inside the vocabulary.
pub(super) fn token_ids(
    fields: &mut Fields,
    name: &str,
    vocab_size: usize,
) -> Result<Option<Vec<u32>>, ApiError> {
    let Some(items) = fields.array(name)? else { return Ok(None) };
    let path = fields.path(name);
    tokens(&path, &items, vocab_size).map(Some)
}

/// Every item of an array as a token id.
pub(super) fn tokens(path: &str, items: &[Value], vocab_size: usize) -> Result<Vec<u32>, ApiError> {
    let token =
        |(i, item)| token_id(&format!("{path}[{i}]"), integer(&format!("{path}[{i}]"), item)?, vocab_size);
    items.iter().enumerate().map(token).collect()
}

fn token_id(path: &str, id: i64, vocab_size: usize) -> Result<u32, ApiError> {
    u32::try_from(id).ok().filter(|&id| (id as usize) < vocab_size).ok_or_else(|| {
        let message =
            format!("`{path}`: expected a token id below the vocabulary size {vocab_size}, found {id}");
        ApiError::invalid(path, message)
    })
}

fn ranged(
    fields: &mut Fields,
    name: &str,
    default: f32,
    range: &str,
    holds: impl Fn(f32) -> bool,
) -> Result<f32, ApiError> {
    match fields.float(name)? {
        None => Ok(default),
        Some(value) if holds(value) => Ok(value),
        Some(value) => {
            let message = format!("`{name}`: expected a number {range}, found {value}");
            Err(ApiError::invalid(name, message))
        }
    }
}

/// 0 and -1 keep every token.
fn top_k(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let Some(k) = fields.integer("top_k")? else { return Ok(None) };
    let limit = if k == -1 { Ok(0) } else { u32::try_from(k) };
    limit.map(Some).map_err(|_| {
        let message = format!("`top_k`: expected a positive integer, or 0 or -1 for no limit, found {k}");
        ApiError::invalid("top_k", message)
    })
}

fn logit_bias(fields: &mut Fields, vocab_size: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    map.into_iter()
        .map(|(key, value)| {
            let path = format!("logit_bias.{key}");
            let id = key.parse().map_err(|_| {
                ApiError::invalid(&path, format!("`{path}`: expected a token id as key, found `{key}`"))
            })?;
            let bias = value.as_f64().ok_or_else(|| mismatch(&path, "a number", &value))? as f32;
            if !(-100.0..=100.0).contains(&bias) {
                let message = format!("`{path}`: expected a number from -100 to 100, found {bias}");
                return Err(ApiError::invalid(path, message));
            }
            Ok((token_id(&path, id, vocab_size)?, bias))
        })
        .collect()
}
