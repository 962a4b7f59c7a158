//! The child of `metrale plugins inspect --model`: prints the graphs that a plugin makes of a model.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use metrale_conformance::{Failure, Traced};
use metrale_graph::dump::{to_json, to_text};
use metrale_graph::host::TensorExists;
use metrale_graph::{Attrs, OpenModel};
use metrale_plugin_api::manifest::Manifest;
use serde_json::Value;

use crate::plugin::{PluginError, library};
use crate::weights::{ModelSource, open_attrs};

/// Arguments: the library, and a directory with config.json, such a file alone, or a GGUF file.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TraceArgs {
    library: PathBuf,
    model: PathBuf,
    #[arg(long)]
    json: bool,
}

/// Traces every entry point of a model; runs in the child.
pub(super) fn trace(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let module = library::open(&args.library)?;
    let manifest = Manifest::parse(module.manifest()().as_str())?;
    let plugin = &manifest.plugin.name;
    let (attrs, exists) = read_model(&args.model)?;
    let open = match OpenModel::open(module, &attrs, exists) {
        Ok(open) => open,
        Err(failure) => return Ok(super::verify::refuse(&PluginError::from_failure(plugin, None, failure))),
    };
    let info = open.info().map_err(|f| PluginError::from_failure(plugin, Some("info"), f))?;
    let has = |entry: &str| match entry {
        "encoder" => info.bool("has_encoder").unwrap_or(false),
        "vision" => info.bool("has_vision").unwrap_or(false),
        _ => true,
    };
    let declared: BTreeSet<_> = manifest.models.iter().flat_map(|m| &m.entry_points).collect();
    let entries: Vec<_> = declared.into_iter().filter(|e| has(e)).cloned().collect();
    let traced = match Traced::of(&open, &entries) {
        Ok(traced) => traced,
        Err(Failure::Call { entry, failure }) => {
            let error = PluginError::from_failure(plugin, entry.as_deref(), *failure);
            return Ok(super::verify::refuse(&error));
        }
        Err(other) => anyhow::bail!("{other}"),
    };
    if args.json {
        println!("{}", Value::from(traced.graphs.iter().map(to_json).collect::<Vec<_>>()));
    } else {
        for graph in &traced.graphs {
            println!("{}", to_text(graph));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What `open` is given, and which tensors there are. A configuration alone is enough; weights, where there are some,
/// decide among alternatives.
fn read_model(path: &Path) -> anyhow::Result<(Attrs, Option<TensorExists>)> {
    if path.extension().is_some_and(|e| e == "json") {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        return Ok((Attrs::new().with("config.json", text), None));
    }
    let source = match ModelSource::open(path) {
        Ok(source) => source,
        Err(error) => ModelSource::open_config(path).map_err(|_| error)?,
    };
    let attrs = open_attrs(&source, None);
    let headers = source.headers().clone();
    let known = !headers.is_empty();
    let exists: TensorExists = Arc::new(move |name| headers.get(name).is_some());
    Ok((attrs, known.then_some(exists)))
}
