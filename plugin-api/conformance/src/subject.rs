//! What is checked: a plugin, its manifest and small models of its types.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrale_graph::checkpoint::{Headers, TensorInfo};
use metrale_graph::host::TensorExists;
use metrale_graph::{Attrs, OpenModel};
use metrale_plugin_api::Config;
use metrale_plugin_api::abi::PluginModule_Ref;
use metrale_plugin_api::manifest::{Manifest, ManifestError, ModelSection};
use metrale_reference::{Checkpoint, ModelError};

use crate::check::Failure;
use crate::random;

/// Folder of the test configurations, in the plugin's crate.
pub const CONFIGS: &str = "configs";

/// The interpreter holds every weight in f32; a larger model belongs on a device.
pub(crate) const MAX_ELEMENTS: usize = 1 << 28;

const LISTING: &str = ".tensors.json";

/// A plugin under test.
pub struct Subject {
    /// Its functions.
    pub module: PluginModule_Ref,
    /// The manifest inside the library.
    pub manifest: Manifest,
    /// Small models to try it on.
    pub models: Vec<TestModel>,
}

impl std::fmt::Debug for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subject({}, {} models)", self.manifest.plugin.name, self.models.len())
    }
}

/// A configuration, and its checkpoint if one is known.
#[derive(Debug)]
pub struct TestModel {
    /// File name, for reports.
    pub name: String,
    /// `model_type` of config.json; empty for GGUF.
    pub model_type: String,
    /// What `open` is given.
    pub attrs: Attrs,
    /// Names and shapes of its tensors.
    pub headers: Option<Arc<Headers>>,
    /// Its tensors, or random ones of these shapes; left out of a model that is too large for the interpreter.
    pub checkpoint: Option<Checkpoint>,
}

/// A subject that cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum SubjectError {
    /// The embedded manifest is wrong.
    #[error("the manifest inside the library: {0}")]
    Manifest(#[from] ManifestError),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {problem}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl Subject {
    /// A plugin without test models.
    ///
    /// # Errors
    /// Its embedded manifest is wrong.
    pub fn new(module: PluginModule_Ref) -> Result<Self, SubjectError> {
        let manifest = Manifest::parse(module.manifest()().as_str())?;
        Ok(Self { module, manifest, models: Vec::new() })
    }

    /// A plugin with the test models of its crate or package at `folder`.
    ///
    /// # Errors
    /// As [`Subject::new`], or a test model cannot be read.
    pub fn read(module: PluginModule_Ref, folder: &Path) -> Result<Self, SubjectError> {
        Ok(Self { models: read_models(&folder.join(CONFIGS))?, ..Self::new(module)? })
    }

    /// What the manifest says about the type of a model.
    pub(crate) fn section(&self, model: &TestModel) -> Option<&ModelSection> {
        let by_type = |m: &&ModelSection| m.model_type == model.model_type;
        let by_gguf = |m: &&ModelSection| {
            let metadata = model.attrs.str("gguf.metadata").and_then(|t| Config::from_json(t).ok());
            let name: Option<String> = metadata.and_then(|c| c.optional("general.architecture").ok()?);
            name.is_some_and(|name| m.gguf.contains(&name))
        };
        self.manifest.models.iter().find(by_type).or_else(|| self.manifest.models.iter().find(by_gguf))
    }

    /// Opens a model as the core would, with or without its checkpoint.
    pub(crate) fn open(&self, attrs: &Attrs, headers: Option<&Arc<Headers>>) -> Result<OpenModel, Failure> {
        let exists = headers
            .cloned()
            .map(|headers| -> TensorExists { Arc::new(move |name| headers.get(name).is_some()) });
        OpenModel::open(self.module, attrs, exists)
            .map_err(|failure| Failure::Call { entry: None, failure: failure.into() })
    }
}

impl TestModel {
    /// A real model at `path`: what `open` is given, its tensors, and a way to read them, which is used if they are few
    /// enough for the interpreter.
    ///
    /// # Errors
    /// config.json is wrong, or the tensors cannot be read.
    pub fn of_checkpoint(
        path: &Path,
        attrs: Attrs,
        headers: Headers,
        read: impl FnOnce(&Path) -> Result<Checkpoint, ModelError>,
    ) -> Result<Self, SubjectError> {
        let model_type =
            attrs.str("config.json").map_or_else(|| Ok(String::new()), |t| model_type(path, t))?;
        let elements: usize = headers.iter().map(TensorInfo::num_elements).sum();
        let checkpoint = if elements <= MAX_ELEMENTS { Some(read(path)?) } else { None };
        let (name, headers) = (path.display().to_string(), Some(Arc::new(headers)));
        Ok(Self { name, model_type, attrs, headers, checkpoint })
    }

    fn of_config(path: &Path) -> Result<Self, SubjectError> {
        let text = read(path)?;
        let model_type = model_type(path, &text)?;
        let attrs = Attrs::new().with("config.json", text);
        let stem = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let listing = path.with_file_name(format!("{stem}{LISTING}"));
        let checkpoint = if listing.exists() {
            let shapes: BTreeMap<String, Vec<usize>> = serde_json::from_str(&read(&listing)?)
                .map_err(|e| wrong(&listing, format!("expected {{\"tensor name\": [shape], …}}: {e}")))?;
            Some(random::checkpoint(&attrs, &shapes).map_err(|e| wrong(&listing, e.to_string()))?)
        } else {
            None
        };
        let headers = checkpoint.as_ref().map(|c| Arc::new(c.headers().clone()));
        Ok(Self { name: format!("{CONFIGS}/{stem}.json"), model_type, attrs, headers, checkpoint })
    }
}

fn model_type(path: &Path, config: &str) -> Result<String, SubjectError> {
    let config = Config::from_json(config).map_err(|e| wrong(path, e.to_string()))?;
    config.required("model_type").map_err(|e| wrong(path, e.to_string()))
}

fn read_models(folder: &Path) -> Result<Vec<TestModel>, SubjectError> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let unreadable = |source| SubjectError::File { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let mut paths =
        entries.map(|e| Ok(e?.path())).collect::<std::io::Result<Vec<_>>>().map_err(unreadable)?;
    paths.sort();
    let name = |p: &Path| p.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    paths.retain(|p| p.extension().is_some_and(|e| e == "json") && !name(p).ends_with(LISTING));
    paths.iter().map(|p| TestModel::of_config(p)).collect()
}

fn read(path: &Path) -> Result<String, SubjectError> {
    std::fs::read_to_string(path).map_err(|source| SubjectError::File { path: path.to_owned(), source })
}

fn wrong(path: &Path, problem: String) -> SubjectError {
    SubjectError::Content { path: path.to_owned(), problem }
}
