//! Level 1: every entry point traces, twice to the same graph, and its weights resolve.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use metrale_graph::checkpoint::Headers;
use metrale_graph::hash::graph_hash;
use metrale_graph::resolve::{Expr, resolve, unclaimed};
use metrale_graph::verify::{unfilled_cross_states, verify};
use metrale_graph::{Attrs, Graph, OpenModel};

use crate::check::{Done, Failure, Finding, Recorder, passed, skipped};
use crate::random;
use crate::subject::{CONFIGS, Subject, TestModel};

/// Names shown of a long list.
const SHOWN: usize = 5;

/// A model's facts and every entry point that its manifest declares.
#[derive(Debug)]
pub struct Traced {
    /// Attributes of `info/1`.
    pub info: Attrs,
    /// `text`, `lm_head` and whatever else is declared, one graph per MTP depth.
    pub graphs: Vec<Graph>,
}

impl Traced {
    /// Traces the entry points.
    ///
    /// # Errors
    /// The plugin refuses one of them.
    pub fn of(model: &OpenModel, entry_points: &[String]) -> Result<Self, Failure> {
        let called = |entry: &str, failure: metrale_graph::PluginFailure| Failure::Call {
            entry: Some(entry.to_owned()),
            failure: failure.into(),
        };
        let info = model.info().map_err(|f| called("info", f))?;
        let mut graphs = Vec::new();
        for entry in entry_points {
            let count = if entry.starts_with("mtp") { info.size("mtp_layers").unwrap_or(0) } else { 1 };
            for index in 0..count {
                graphs.push(model.trace(entry, index).map_err(|f| called(entry, f))?);
            }
        }
        Ok(Self { info, graphs })
    }

    fn graph(&self, entry: &str) -> Option<&Graph> {
        self.graphs.iter().find(|g| g.entry == entry)
    }

    /// Every tensor that the first alternatives ask for, with its shape.
    pub(crate) fn requested(&self) -> Result<BTreeMap<String, Vec<usize>>, Failure> {
        let mut tensors: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for graph in &self.graphs {
            let (resolution, _) = resolve(graph, None);
            for (root, weight) in &resolution.weights {
                let mut leaves = Vec::new();
                collect(&weight.expr, &mut leaves);
                for (name, shape) in leaves {
                    let known = tensors.entry(name.to_owned()).or_insert_with(|| shape.to_vec());
                    if known != shape {
                        let what = format!("tensor `{name}` is asked for with two shapes");
                        let help = "one of the two requests has the wrong dimensions";
                        let place = &graph.producer(*root).source;
                        return Err(Finding::new(what, help)
                            .at(format!("{place}   (entry {})", graph.entry))
                            .wanted(format!("{known:?}, as before"), format!("{shape:?}"))
                            .into());
                    }
                }
            }
        }
        Ok(tensors)
    }
}

fn collect<'e>(expr: &'e Expr, leaves: &mut Vec<(&'e str, &'e [usize])>) {
    match expr {
        Expr::Dummy { name, shape } => leaves.push((name, shape)),
        Expr::Tensor(tensor) => leaves.push((&tensor.name, &tensor.shape)),
        Expr::Stack { parts, .. } => parts.iter().for_each(|p| collect(p, leaves)),
        Expr::Slice { of, .. }
        | Expr::Reshape { of, .. }
        | Expr::Permute { of, .. }
        | Expr::Affine { of, .. }
        | Expr::NegExp(of)
        | Expr::LogNeg(of) => collect(of, leaves),
    }
}

/// Returns the models that trace and whose weights resolve.
pub(crate) fn check<'s>(subject: &'s Subject, recorder: &mut Recorder<'_>) -> Vec<&'s TestModel> {
    recorder.check("trace.configs", "plugin", || configs(subject));
    let mut sound = Vec::new();
    for model in &subject.models {
        let name = &model.name;
        if !recorder.check("trace.entries", name, || entries(subject, model)) {
            continue;
        }
        recorder.check("trace.repeatable", name, || repeatable(subject, model));
        recorder.check("trace.rules", name, || rules(subject, model));
        recorder.check("trace.ops", name, || ops(subject, model));
        let weights = recorder.check("trace.weights", name, || weights(subject, model));
        if recorder.check("trace.tensors", name, || tensors(subject, model)) && weights {
            sound.push(model);
        }
    }
    sound
}

pub(crate) fn trace(
    subject: &Subject,
    model: &TestModel,
    headers: Option<&Arc<Headers>>,
) -> Result<Traced, Failure> {
    let open = subject.open(&model.attrs, headers)?;
    let Some(section) = subject.section(model) else {
        let declared: Vec<_> = subject.manifest.models.iter().map(|m| m.model_type.as_str()).collect();
        let what = format!("plugin.toml declares no [[model]] for `{}`", model.model_type);
        return Err(Finding::new(what, "add the section, or correct `model_type` in the configuration")
            .at(&model.name)
            .wanted(declared.join(", "), &model.model_type)
            .into());
    };
    Traced::of(&open, &section.entry_points)
}

/// Every declared model type has a test configuration.
fn configs(subject: &Subject) -> Result<Done, Failure> {
    let covered: BTreeSet<_> =
        subject.models.iter().filter_map(|m| subject.section(m)).map(|m| &m.model_type).collect();
    let missing: Vec<_> = subject
        .manifest
        .models
        .iter()
        .map(|m| m.model_type.as_str())
        .filter(|t| !covered.iter().any(|c| *c == t))
        .collect();
    if missing.is_empty() {
        return passed(format!("{} model types, {} test models", covered.len(), subject.models.len()));
    }
    let what = format!("no test configuration for model_type {}", missing.join(", "));
    let help = format!("put a small config.json of it beside plugin.toml: {CONFIGS}/{}.json", missing[0]);
    Err(Finding::new(what, help).into())
}

/// What is declared traces; facts are sensible.
fn entries(subject: &Subject, model: &TestModel) -> Result<Done, Failure> {
    let traced = trace(subject, model, model.headers.as_ref())?;
    for key in ["num_layers", "hidden_size", "vocab_size", "context_length"] {
        if traced.info.size(key).unwrap_or(0) == 0 {
            return Err(Finding::new(
                format!("`describe` says that {key} is 0"),
                format!("set `ModelInfo::{key}`"),
            )
            .into());
        }
    }
    let needs = [
        ("text", true),
        ("lm_head", true),
        ("mtp", traced.info.size("mtp_layers").unwrap_or(0) > 0),
        ("mtp_head", traced.info.bool("has_mtp_head").unwrap_or(false)),
        ("encoder", traced.info.bool("has_encoder").unwrap_or(false)),
        ("vision", traced.info.bool("has_vision").unwrap_or(false)),
    ];
    let section = subject.section(model).map_or(&[][..], |s| &s.entry_points);
    for (entry, needed) in needs {
        if needed && !section.iter().any(|e| e == entry) {
            let what = format!("the model has an entry point `{entry}` that plugin.toml does not declare");
            return Err(Finding::new(what, format!("add \"{entry}\" to `entry_points`"))
                .wanted(entry, section.join(", "))
                .into());
        }
    }
    let ops: usize = traced.graphs.iter().map(|g| g.nodes.len()).sum();
    let names: Vec<_> = traced.graphs.iter().map(|g| g.entry.as_str()).collect();
    passed(format!("{}: {ops} ops", names.join(", ")))
}

/// The same model traced twice, and opened twice, is the same graph.
fn repeatable(subject: &Subject, model: &TestModel) -> Result<Done, Failure> {
    let (first, second) =
        (trace(subject, model, model.headers.as_ref())?, trace(subject, model, model.headers.as_ref())?);
    for (a, b) in first.graphs.iter().zip(&second.graphs) {
        if graph_hash(a) != graph_hash(b) {
            let place = a
                .nodes
                .iter()
                .zip(&b.nodes)
                .find(|(x, y)| x.op.name != y.op.name || x.attrs != y.attrs || x.inputs != y.inputs);
            let place = place.map_or_else(String::new, |(x, _)| x.source.to_string());
            let what = format!("two traces of entry `{}` differ", a.entry);
            return Err(Finding::new(
                what,
                "trace from the configuration alone: no clock, no random numbers, no hash map order",
            )
            .at(place)
            .into());
        }
    }
    passed("equal structural hashes")
}

/// Rules that no single op can check.
fn rules(subject: &Subject, model: &TestModel) -> Result<Done, Failure> {
    let traced = trace(subject, model, model.headers.as_ref())?;
    let mut problems: Vec<String> = traced.graphs.iter().flat_map(verify).map(|e| e.to_string()).collect();
    if let Some(text) = traced.graph("text") {
        let unfilled = unfilled_cross_states(text, traced.graph("encoder"));
        problems.extend(
            unfilled
                .iter()
                .map(|s| format!("entry `text`: reads the cross state `{s}`, which no encoder fills")),
        );
    }
    if problems.is_empty() {
        return passed("outputs complete, states written and read");
    }
    Err(Finding::new(problems.join("; "), "see the table of entry points in op-set.md").into())
}

/// Ops that plugin.toml lists, where it lists any.
fn ops(subject: &Subject, model: &TestModel) -> Result<Done, Failure> {
    let declared = subject.section(model).map_or(&[][..], |s| &s.ops);
    if declared.is_empty() {
        return skipped("plugin.toml lists no ops");
    }
    let traced = trace(subject, model, model.headers.as_ref())?;
    let used: BTreeSet<_> = traced.graphs.iter().flat_map(|g| &g.nodes).map(|n| n.op.name).collect();
    let missing: Vec<_> = used.iter().filter(|op| !declared.iter().any(|d| d == *op)).copied().collect();
    if missing.is_empty() {
        return passed(format!("{} ops", used.len()));
    }
    Err(Finding::new(
        "plugin.toml does not list every op that the model uses",
        "add them to `ops`, or remove the list",
    )
    .wanted(used.into_iter().collect::<Vec<_>>().join(", "), format!("without {}", missing.join(", ")))
    .into())
}

/// The requests of all entry points go together: a checkpoint made of them resolves, and leaves nothing over.
fn weights(subject: &Subject, model: &TestModel) -> Result<Done, Failure> {
    let requested = trace(subject, model, None)?.requested()?;
    let checkpoint = random::checkpoint(&model.attrs, &requested).map_err(|e| {
        Finding::new(e.to_string(), "make the dimensions of the configuration smaller").at(&model.name)
    })?;
    let headers = Arc::new(checkpoint.headers().clone());
    let claimed = resolve_all(&trace(subject, model, Some(&headers))?, &headers)?;
    let elements: usize = requested.values().map(|s| s.iter().product::<usize>()).sum();
    passed(format!("{} tensors, {elements} elements", claimed.len()))
}

/// The requests meet a real list of tensors: nothing missing, misshapen or left over.
fn tensors(subject: &Subject, model: &TestModel) -> Result<Done, Failure> {
    let Some(headers) = &model.headers else {
        return skipped(format!("no {}", model.name.replace(".json", ".tensors.json")));
    };
    let traced = trace(subject, model, Some(headers))?;
    let claimed = resolve_all(&traced, headers)?;
    let ignored = subject.section(model).map_or(&[][..], |s| &s.ignored);
    let left: Vec<_> = unclaimed(headers, &claimed, ignored).into_iter().map(|t| t.name.as_str()).collect();
    if left.is_empty() {
        return passed(format!("{} tensors, none left over", claimed.len()));
    }
    let more = if left.len() > SHOWN { format!(" and {} more", left.len() - SHOWN) } else { String::new() };
    let what = format!("the checkpoint has {} tensors that nobody asks for", left.len());
    Err(Finding::new(what, "ask for them, or list them in plugin.toml: `ignored = [\"…\"]`")
        .at(&model.name)
        .wanted("none", format!("{}{more}", left[..left.len().min(SHOWN)].join(", ")))
        .into())
}

/// Resolves every entry; an MTP head of which nothing is there is left out, as the core does.
fn resolve_all(traced: &Traced, headers: &Headers) -> Result<BTreeSet<String>, Failure> {
    let mut claimed = BTreeSet::new();
    for graph in &traced.graphs {
        let (resolution, report) = resolve(graph, Some(headers));
        let absent = graph.entry == "mtp" && resolution.claimed.is_subset(&claimed);
        if !report.is_empty() && !absent {
            return Err(Failure::Weights(report));
        }
        claimed.extend(resolution.claimed);
    }
    Ok(claimed)
}
