//! Beam search over HTTP: its fields, and its hypotheses as choices.

use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::iter;
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};

use super::backend::{Backend, EventStream, ServedModel};
use super::error::ApiError;
use super::fields::{Fields, mismatch};
use super::generation::{Delta, Finish, OutputOptions};
use super::metrics::Timer;
use super::request::{Job, Streams, output_options};
use super::sampling::count;
use crate::error::EngineError;
use crate::sched::{BeamParams, EarlyStopping, Event, GenerateRequest, Hypothesis};

/// Reads the fields of beam search; nothing if it is not asked for. `n` hypotheses become choices.
pub(super) fn read(
    fields: &mut Fields,
    n: usize,
    default_num_beams: usize,
) -> Result<Option<BeamParams>, ApiError> {
    let is_wanted = fields.boolean("use_beam_search")?;
    let num_beams = count(fields, "num_beams", 1)?;
    let best_of = count(fields, "best_of", 1)?;
    let length_penalty = fields.float("length_penalty")?;
    let early_stopping = early_stopping(fields)?;
    let is_wanted = is_wanted.unwrap_or_else(|| num_beams.unwrap_or(default_num_beams) > 1);
    if !is_wanted {
        let only_beams = [
            ("num_beams", num_beams.is_some_and(|b| b > 1)),
            ("best_of", best_of.is_some_and(|b| b > 1)),
            ("length_penalty", length_penalty.is_some_and(|p| p != 1.0)),
            ("early_stopping", early_stopping.is_some_and(|e| e != EarlyStopping::Heuristic)),
        ];
        return match only_beams.iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => {
                let message =
                    format!("`{name}` belongs to beam search; send `use_beam_search: true` with it");
                Err(ApiError::invalid(*name, message))
            }
            None => Ok(None),
        };
    }
    let num_beams = num_beams.or(best_of).unwrap_or_else(|| default_num_beams.max(n));
    if num_beams < n {
        let message = format!("`n`: expected at most the number of beams ({num_beams}), found {n}");
        return Err(ApiError::invalid("n", message));
    }
    Ok(Some(BeamParams {
        num_beams,
        num_return: n,
        length_penalty: length_penalty.unwrap_or(1.0),
        early_stopping: early_stopping.unwrap_or_default(),
    }))
}

/// `true`, `false` or `"never"`.
fn early_stopping(fields: &mut Fields) -> Result<Option<EarlyStopping>, ApiError> {
    Ok(Some(match fields.take("early_stopping") {
        None => return Ok(None),
        Some(Value::Bool(true)) => EarlyStopping::WhenFull,
        Some(Value::Bool(false)) => EarlyStopping::Heuristic,
        Some(Value::String(word)) if word == "never" => EarlyStopping::Never,
        Some(other) => return Err(mismatch("early_stopping", "true, false or \"never\"", &other)),
    }))
}

impl Job {
    /// One search per prompt; its hypotheses are the choices.
    pub(super) fn searches(
        &self,
        model: &ServedModel,
        terminators: &Arc<[u32]>,
    ) -> Result<Streams, ApiError> {
        let searches = self
            .prompts
            .iter()
            .map(|prompt| Search::start(model.engine.as_ref(), self.request(prompt), self.arrival))
            .collect::<Result<Vec<_>, _>>()?;
        let streams = searches.into_iter().enumerate().map(|(index, search)| {
            let (text, prompt) = (model.text.clone(), self.prompts[index].tokens.clone());
            let (output, terminators) = (self.common.output.clone(), terminators.clone());
            let (eos, n) = (model.eos_token_ids.clone(), self.common.n);
            let found = async move {
                let options = || output_options(text.as_deref(), &prompt, &output, &terminators);
                search.finish(options, &eos).await
            };
            let choices = found.into_stream().flat_map(move |found| {
                let choices: Vec<_> = match found {
                    Ok(mut deltas) => {
                        // A vocabulary of a few tokens has no more hypotheses.
                        deltas.resize_with(n, Delta::default);
                        deltas.into_iter().enumerate().map(|(i, d)| (index * n + i, Ok(d))).collect()
                    }
                    Err(error) => vec![(index * n, Err(error.into()))],
                };
                iter(choices)
            });
            choices.boxed()
        });
        Ok(streams.collect())
    }
}

/// A running search. Dropping it aborts it in the engine.
struct Search {
    events: EventStream,
    timer: Timer,
}

impl Search {
    /// Submits `request`; `arrival` is when the client's request came in.
    fn start(engine: &dyn Backend, request: GenerateRequest, arrival: Instant) -> Result<Self, EngineError> {
        let timer = Timer::start(arrival, request.prompt.len());
        Ok(Self { events: engine.submit(request)?, timer })
    }

    /// Waits for the hypotheses, best first: all of each in one delta. `eos` are the model's own end tokens.
    async fn finish(
        mut self,
        options: impl Fn() -> OutputOptions,
        eos: &[u32],
    ) -> Result<Vec<Delta>, EngineError> {
        let mut found = Vec::new();
        while let Some(event) = self.events.next().await {
            match event {
                Event::Hypotheses(hypotheses) => found = hypotheses,
                Event::Finished { num_cached_tokens, .. } => {
                    let read = |h| read_hypothesis(h, options(), eos, num_cached_tokens);
                    let deltas = found.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
                    self.timer.tokens_at_once(deltas.iter().map(|delta| delta.tokens.len()).sum());
                    self.timer.finish("stop");
                    return Ok(deltas);
                }
                Event::Failed(error) => {
                    self.timer.finish("error");
                    return Err(error);
                }
                Event::Token { .. } | Event::PromptLogprobs(_) => {}
            }
        }
        Err(EngineError::Unavailable("the engine stopped before the request was finished".to_owned()))
    }
}

fn read_hypothesis(
    hypothesis: Hypothesis,
    mut options: OutputOptions,
    eos: &[u32],
    num_cached_tokens: usize,
) -> Result<Delta, EngineError> {
    let Hypothesis { tokens, score, ended_by } = hypothesis;
    let hidden = usize::from(ended_by.is_some() && !options.include_terminator);
    let mut delta = Delta::default();
    if let Some(stream) = &mut options.text {
        for &token in &tokens[..tokens.len() - hidden] {
            delta.add_text(stream.push(token)?);
            if delta.finish.is_some() {
                break;
            }
        }
        if delta.finish.is_none() {
            delta.add_text(stream.finish()?);
        }
    }
    delta.tokens = tokens;
    let reason = if ended_by.is_some() { "stop" } else { "length" };
    let stop_reason = json!(ended_by.filter(|token| !eos.contains(token)));
    let finish =
        delta.finish.get_or_insert(Finish { reason, stop_reason, num_cached_tokens, beam_score: None });
    finish.num_cached_tokens = num_cached_tokens;
    finish.beam_score = Some(score);
    Ok(delta)
}
