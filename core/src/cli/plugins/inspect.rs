//! `metrale plugins inspect`: everything that is known of one plugin, and what it makes of a model.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use metrale_plugin_api::manifest::{Manifest, ModelSection};
use serde_json::{Value, json};

use crate::plugin::probe::{ProbeReport, Prober, checked_link_facts};
use crate::plugin::{Candidate, PluginError, Status, elf};

/// Flags of `metrale plugins inspect`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct InspectArgs {
    /// Folder of the plugin (a crate whose library is in `target/release` will do), or its name.
    #[arg(value_name = "PATH|NAME")]
    plugin: String,
    /// Directory to search for plugins; may be given several times.
    #[arg(long, value_name = "DIR")]
    plugins: Vec<PathBuf>,
    /// Also print the graph that it makes of this model: a directory with config.json, such a file
    /// alone, or a GGUF file.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn execute(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let prober = Prober::this_program()?;
    let plugin = match super::find(&args.plugin, &args.plugins, &prober) {
        Ok(plugin) => plugin,
        Err(error) => return Ok(super::verify::refuse(&error)),
    };
    let facts = Facts::of(&plugin, &prober);
    let graph = match (&args.model, &facts.problem) {
        (Some(model), None) => Some(trace_in_child(&plugin, model, args.json, &prober)?),
        _ => None,
    };
    if args.json {
        let mut json = facts.to_json(&plugin);
        if let Some(Traces { text, .. }) = &graph {
            json["graphs"] = serde_json::from_str(text).unwrap_or(Value::Null);
        }
        println!("{}", serde_json::to_string_pretty(&json)?);
    } else {
        println!("{}", facts.to_text(&plugin));
        if let Some(Traces { text, .. }) = &graph {
            println!("\n{}", text.trim_end());
        }
    }
    let traced = graph.is_none_or(|g| g.complete);
    Ok(if facts.problem.is_none() && traced { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What files and probe say.
struct Facts {
    links: Option<elf::LinkFacts>,
    probe: Option<ProbeReport>,
    problem: Option<PluginError>,
}

impl Facts {
    fn of(plugin: &Candidate, prober: &Prober) -> Self {
        let links = plugin.library().and_then(|path| checked_link_facts(path).ok());
        match plugin.probe(prober) {
            Ok(report) => Self { links, probe: Some(report), problem: None },
            Err(problem) => Self { links, probe: None, problem: Some(problem) },
        }
    }

    fn to_text(&self, plugin: &Candidate) -> String {
        let mut rows: Vec<(&str, String)> = vec![("plugin", plugin.name().to_owned())];
        if let Some(manifest) = plugin.manifest() {
            rows.extend(manifest_rows(manifest));
        }
        rows.push(("folder", plugin.folder().display().to_string()));
        rows.extend(plugin.library().map(|l| ("library", l.display().to_string())));
        if let Some(probe) = &self.probe {
            rows.push(("crate", format!("{} {}", probe.crate_name, probe.crate_version)));
            rows.push((
                "built with",
                format!("plugin-api {}, ABI {}, {}", probe.api_version, probe.abi_major, probe.target),
            ));
        }
        if let Some(links) = &self.links {
            rows.push(("exports", list(&links.exports)));
            rows.push(("needs", list(&links.needed)));
        }
        rows.push(("extensions", "none: this metrale asks for none".to_owned()));
        rows.push(("trust", if plugin.is_pinned() { "pinned" } else { "not pinned" }.to_owned()));
        let status = self
            .problem
            .as_ref()
            .map_or_else(|| "ready".to_owned(), |p| Status::of(p.clone()).word().to_owned());
        rows.push(("status", status));
        let mut lines: Vec<_> = rows.iter().map(|(key, value)| format!("{key:12} {value}")).collect();
        lines.extend(self.problem.as_ref().map(|problem| format!("\n{problem}")));
        lines.join("\n")
    }

    fn to_json(&self, plugin: &Candidate) -> Value {
        let status = self.problem.as_ref().map_or("ready", |p| Status::of(p.clone()).word());
        json!({
            "name": plugin.name(),
            "folder": plugin.folder(),
            "library": plugin.library(),
            "manifest": plugin.manifest(),
            "build": self.probe.as_ref().map(|p| json!({
                "crate": p.crate_name, "version": p.crate_version, "plugin_api": p.api_version,
                "abi": p.abi_major, "target": p.target,
            })),
            "links": self.links,
            "extensions": [],
            "pinned": plugin.is_pinned(),
            "status": status,
            "problem": self.problem.as_ref().map(PluginError::explanation),
        })
    }
}

fn manifest_rows(manifest: &Manifest) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("version", manifest.plugin.version.clone()),
        ("about", manifest.plugin.description.clone()),
        ("license", manifest.plugin.license.clone()),
    ];
    for ModelSection { model_type, architectures, gguf, entry_points, ops, .. } in &manifest.models {
        let gguf = if gguf.is_empty() { String::new() } else { format!(", GGUF {}", gguf.join(" ")) };
        rows.push((
            "model",
            format!("{model_type} ({}{gguf}): {}", architectures.join(" "), entry_points.join(", ")),
        ));
        if !ops.is_empty() {
            rows.push(("ops", ops.join(", ")));
        }
    }
    for kernel in &manifest.kernels {
        rows.push(("kernel", format!("{} tier {} for sm {}", kernel.op, kernel.tier, kernel.sm.join(" "))));
    }
    rows.retain(|(_, value)| !value.is_empty());
    rows
}

fn list(items: &[String]) -> String {
    if items.is_empty() { "nothing".to_owned() } else { items.join(", ") }
}

/// What the child printed.
struct Traces {
    text: String,
    complete: bool,
}

fn trace_in_child(plugin: &Candidate, model: &Path, json: bool, prober: &Prober) -> anyhow::Result<Traces> {
    let library = plugin.library().context("the plugin has no library")?;
    let mut command = Command::new(prober.program());
    command.args(["plugins", "__trace"]).arg(library).arg(model).args(json.then_some("--json"));
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Traces { text, complete: output.status.success() })
}
