//! From a plugin to the graphs of its entry points.

use std::collections::BTreeSet;
use std::sync::Arc;

use metrale_graph::verify::verify;
use metrale_graph::{Attrs, Graph, OpenModel};
use metrale_plugin_api::abi::PluginModule_Ref;

use super::{BuildError, ModelFacts};
use crate::plugin::PluginError;
use crate::weights::ModelSource;

/// Everything that the plugin describes.
pub(super) struct Traced {
    pub(super) text: Graph,
    pub(super) lm_head: Graph,
    pub(super) encoder: Option<Graph>,
    pub(super) mtp: Vec<Graph>,
    /// One per MTP depth, or none.
    pub(super) mtp_heads: Vec<Graph>,
    pub(super) vision: Option<Graph>,
    pub(super) facts: ModelFacts,
}

impl Traced {
    /// All entry points.
    fn graphs(&self) -> impl Iterator<Item = &Graph> {
        let heads = [&self.text, &self.lm_head].into_iter().chain(&self.mtp_heads);
        heads.chain(&self.encoder).chain(&self.mtp).chain(&self.vision)
    }
}

/// Opens the model and traces every entry point that it has.
pub(super) fn trace(
    module: PluginModule_Ref,
    attrs: &Attrs,
    source: Option<&ModelSource>,
    plugin: &str,
) -> Result<Traced, BuildError> {
    let failed = |entry| move |failure| PluginError::from_failure(plugin, entry, failure);
    let names: Option<BTreeSet<String>> =
        source.map(|s| s.headers().iter().map(|t| t.name.clone()).collect());
    let exists: Option<metrale_graph::host::TensorExists> = names
        .map(|names| Arc::new(move |name: &str| names.contains(name)) as metrale_graph::host::TensorExists);
    let model = OpenModel::open(module, attrs, exists).map_err(failed(None))?;
    let info = model.info().map_err(failed(Some("info")))?;

    let entry = |name, index| model.trace(name, index).map_err(failed(Some(name)));
    let optional = |name: &'static str| {
        (info.bool(&format!("has_{name}")) == Some(true)).then(|| entry(name, 0)).transpose()
    };
    let size = |key: &str| info.size(key).unwrap_or(0);
    let num_mtp = size("mtp_layers");
    let num_heads = if info.bool("has_mtp_head") == Some(true) { num_mtp } else { 0 };
    let depths = |name, count| (0..count).map(|depth| entry(name, depth)).collect::<Result<_, _>>();
    let traced = Traced {
        text: entry("text", 0)?,
        lm_head: entry("lm_head", 0)?,
        encoder: optional("encoder")?,
        mtp: depths("mtp", num_mtp)?,
        mtp_heads: depths("mtp_head", num_heads)?,
        vision: optional("vision")?,
        facts: ModelFacts {
            num_layers: size("num_layers"),
            vocab_size: size("vocab_size"),
            context_length: size("context_length"),
            info: info.clone(),
        },
    };
    let problems: Vec<_> = traced.graphs().flat_map(verify).collect();
    if problems.is_empty() {
        Ok(traced)
    } else {
        Err(BuildError::Graph { plugin: plugin.to_owned(), problems })
    }
}
