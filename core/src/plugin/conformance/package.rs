//! Level 0, the files: what can be known of a plugin without running its code, and that its library opens.

use super::{Line, Verdict};
use crate::plugin::probe::{Prober, checked_link_facts};
use crate::plugin::{Candidate, PluginError, Registry, Status};

/// Libraries that every Linux system has; a plugin needs no other.
const SYSTEM_LIBRARIES: [&str; 8] =
    ["libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libgcc_s.so", "ld-linux-", "libutil.so"];

/// Checks the files; returns whether the library may be opened.
pub(super) fn check(
    plugin: &Candidate,
    others: &Registry,
    prober: &Prober,
    report: &mut dyn FnMut(Line),
) -> bool {
    let mut check = |id: &str, result: Result<String, String>| {
        let good = result.is_ok();
        let verdict = if good { Verdict::Passed } else { Verdict::Failed };
        let text = result.unwrap_or_else(|e| e);
        report(Line { id: format!("package.{id}"), subject: "plugin".to_owned(), verdict, text });
        good
    };
    let text = |e: &PluginError| e.to_string();
    if let Some(error) = plugin.status().error() {
        return check("ready", Err(text(error)));
    }
    let library = plugin.library().map(|l| l.display().to_string()).unwrap_or_default();
    check("ready", Ok(library));
    check("links", links(plugin));
    check("unique", unique(plugin, others));
    check("opens", plugin.probe(prober).map(|r| format!("SDK {}", r.api_version)).map_err(|e| text(&e)))
}

/// One exported symbol, only system libraries, no run path.
fn links(plugin: &Candidate) -> Result<String, String> {
    let Some(path) = plugin.library() else { return Err("there is no library".to_owned()) };
    let facts = checked_link_facts(path).map_err(|e| e.to_string())?;
    let complain = |what: &str, expected: &str, found: &[String], help: &str| {
        let (path, found) = (path.display(), found.join(", "));
        Err(format!(
            "error[package.links]: {path} {what}\n   expected  {expected}\n   found     {found}\n   help: {help}"
        ))
    };
    let entry = metrale_plugin_api::abi::ENTRY_SYMBOL;
    if facts.exports != [entry] {
        let help = "export nothing else: no `#[no_mangle]`, no C++ library with public symbols";
        return complain("exports more than its entry symbol", entry, &facts.exports, help);
    }
    let foreign: Vec<_> = facts
        .needed
        .iter()
        .filter(|n| !SYSTEM_LIBRARIES.iter().any(|system| n.starts_with(system)))
        .cloned()
        .collect();
    if !foreign.is_empty() {
        let help = "link them statically, or do without: a plugin only describes a model";
        return complain("needs libraries that a system may not have", "the C library", &foreign, help);
    }
    if !facts.run_paths.is_empty() {
        let help = "remove `-rpath` from the linker's arguments";
        return complain("wants other folders searched for libraries", "no run path", &facts.run_paths, help);
    }
    Ok(format!("exports {entry} alone"))
}

/// No other plugin claims its model types.
fn unique(plugin: &Candidate, others: &Registry) -> Result<String, String> {
    let models = plugin.manifest().map_or(&[][..], |m| &m.models);
    let same_folder =
        |other: &Candidate| match (other.folder().canonicalize(), plugin.folder().canonicalize()) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        };
    let rivals = || others.candidates().iter().filter(|c| *c.status() == Status::Ready && !same_folder(c));
    for model in models {
        if let Some(rival) = rivals().find(|c| c.model(&model.model_type).is_some()) {
            let both = [plugin, rival].map(|c| (c.name().to_owned(), c.folder().to_owned()));
            let model_type = model.model_type.clone();
            return Err(PluginError::Conflict { model_type, plugins: both.into() }.to_string());
        }
    }
    let types: Vec<_> = models.iter().map(|m| m.model_type.as_str()).collect();
    Ok(format!("alone with {}", types.join(", ")))
}
