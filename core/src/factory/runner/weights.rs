//! The weights of all entry points, matched with the checkpoint.

use std::collections::BTreeSet;

use metrale_graph::Graph;
use metrale_graph::checkpoint::{Headers, TensorInfo};
use metrale_graph::resolve::{Report, Resolution, resolve, unclaimed};

use super::trace::Traced;
use super::{BuildError, RunnerOptions};
use crate::weights::ModelSource;

/// How the weights of each entry point are made.
pub(super) struct Resolved {
    pub(super) text: Resolution,
    pub(super) lm_head: Resolution,
    pub(super) encoder: Option<Resolution>,
    /// Of the MTP depths that the checkpoint has, in order, with those of their heads.
    pub(super) mtp: Vec<(Resolution, Option<Resolution>)>,
    /// Of the vision tower, if the checkpoint has one.
    pub(super) vision: Option<Resolution>,
}

/// Matches all entry points with the checkpoint and reports every problem at once.
pub(super) fn resolve_all(
    traced: &Traced,
    source: Option<&ModelSource>,
    options: &RunnerOptions,
    plugin: &str,
    notes: &mut Vec<String>,
) -> Result<Resolved, BuildError> {
    let headers = source.map(ModelSource::headers);
    let mut matcher = Matcher { headers, report: Report::default(), claimed: BTreeSet::new(), notes };
    let text = matcher.required(&traced.text);
    let lm_head = matcher.required(&traced.lm_head);
    let encoder = traced.encoder.as_ref().map(|graph| matcher.required(graph));
    let mtp = traced.mtp.iter().enumerate().filter_map(|(depth, graph)| {
        let weights = matcher.optional(graph)?;
        Some((weights, traced.mtp_heads.get(depth).map(|head| matcher.required(head))))
    });
    let mtp = mtp.collect();
    let vision = traced.vision.as_ref().and_then(|graph| matcher.optional(graph));
    let Matcher { report, claimed, .. } = matcher;
    if !report.is_empty() {
        let checkpoint = source.map_or_else(String::new, |s| s.path().display().to_string());
        return Err(BuildError::Weights { plugin: plugin.to_owned(), checkpoint, report });
    }
    if let Some(text) =
        headers.and_then(|h| describe_unclaimed(&unclaimed(h, &claimed, &options.ignored_tensors)))
    {
        if options.strict_weights {
            return Err(BuildError::Unclaimed(text));
        }
        notes.push(text);
    }
    Ok(Resolved { text, lm_head, encoder, mtp, vision })
}

struct Matcher<'a> {
    headers: Option<&'a Headers>,
    report: Report,
    claimed: BTreeSet<String>,
    notes: &'a mut Vec<String>,
}

impl Matcher<'_> {
    fn required(&mut self, graph: &Graph) -> Resolution {
        let (weights, report) = resolve(graph, self.headers);
        self.report.problems.extend(report.problems);
        self.claimed.extend(weights.claimed.iter().cloned());
        weights
    }

    /// An entry point that a checkpoint may leave out whole: nothing of it is there but what it shares with others.
    fn optional(&mut self, graph: &Graph) -> Option<Resolution> {
        let (weights, report) = resolve(graph, self.headers);
        let absent = report.num_missing > 0 && weights.claimed.is_subset(&self.claimed);
        if absent {
            self.notes.push(format!(
                "the checkpoint has no weights for the entry point `{}`; it is disabled",
                graph.entry
            ));
            return None;
        }
        self.report.problems.extend(report.problems);
        self.claimed.extend(weights.claimed.iter().cloned());
        Some(weights)
    }
}

fn describe_unclaimed(tensors: &[&TensorInfo]) -> Option<String> {
    const SHOWN: usize = 5;
    if tensors.is_empty() {
        return None;
    }
    let bytes: u64 = tensors.iter().map(|t| t.num_bytes).sum();
    let names: Vec<_> = tensors.iter().take(SHOWN).map(|t| format!("{} {:?}", t.name, t.shape)).collect();
    let more = tensors.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!(
        "{} tensors ({bytes} bytes) are not used by this model: {}{more}",
        tensors.len(),
        names.join(", ")
    ))
}
