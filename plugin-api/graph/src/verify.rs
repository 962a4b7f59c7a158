//! Checks of a finished graph that no single op can make.

use std::collections::BTreeSet;

use crate::graph::{Graph, StateKind, ValueKind};
use crate::schema::Effect;

/// A graph that no core should run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry `{entry}`: {message}")]
pub struct VerifyError {
    /// Entry point.
    pub entry: String,
    /// What is wrong.
    pub message: String,
}

/// The outputs that each entry point must have.
const REQUIRED_OUTPUTS: &[(&str, &[&str])] = &[
    ("text", &["final_hidden"]),
    ("lm_head", &["logits"]),
    ("mtp", &["recycle", "head_in"]),
    ("mtp_head", &["logits"]),
    ("encoder", &["encoder_hidden"]),
    ("vision", &["rows"]),
];

/// Checks one entry point; returns every problem.
#[must_use]
pub fn verify(graph: &Graph) -> Vec<VerifyError> {
    let mut problems = Vec::new();
    let mut complain = |message: String| problems.push(VerifyError { entry: graph.entry.clone(), message });

    let required =
        REQUIRED_OUTPUTS.iter().find(|(e, _)| *e == graph.entry).map_or(&[][..], |(_, outputs)| outputs);
    for name in required {
        if graph.output(name).is_none() {
            complain(format!("has no output `{name}`"));
        }
    }
    let mut seen = BTreeSet::new();
    for (name, _) in graph.outputs() {
        if !seen.insert(name) {
            complain(format!("has the output `{name}` twice"));
        }
    }
    for (index, state) in graph.states.iter().enumerate() {
        let touches = |effect: Effect| {
            graph.nodes.iter().any(|n| {
                n.op.effect == effect
                    && n.inputs.iter().flatten().any(|id| graph.value(*id).kind == ValueKind::State(index))
            })
        };
        let (written, read) = (touches(Effect::WritesState), touches(Effect::ReadsState));
        match state.kind {
            StateKind::Kv(_) if !written || !read => complain(format!(
                "the KV state `{}` is {}",
                state.name,
                if written { "written and never read" } else { "never written" }
            )),
            StateKind::Recurrent { .. } | StateKind::Conv { .. } | StateKind::Tokens { .. } if !written => {
                complain(format!("the state `{}` is declared and never used", state.name));
            }
            _ => {}
        }
    }
    problems
}

/// States that an encoder must fill because the text entry reads them, and does not.
#[must_use]
pub fn unfilled_cross_states(text: &Graph, encoder: Option<&Graph>) -> Vec<String> {
    let crosses = |g: &Graph| -> BTreeSet<String> {
        g.states.iter().filter(|s| matches!(s.kind, StateKind::Cross(_))).map(|s| s.name.clone()).collect()
    };
    let filled = encoder.map(crosses).unwrap_or_default();
    crosses(text).difference(&filled).cloned().collect()
}
