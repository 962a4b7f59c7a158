//! `plugin.toml`: what a plugin says about itself before anything of it runs.
//!
//! The author's part is embedded in the library by `export_plugin!` and compared with the file beside it; `[library]`
//! is added by `metrale plugins pack`.

use serde::{Deserialize, Serialize};

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Who.
    pub plugin: PluginSection,
    /// Built against what.
    pub api: ApiSection,
    /// Where the code is; absent: `libmetrale_<name>.so` beside the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<LibrarySection>,
    /// Model types it describes.
    #[serde(default, rename = "model")]
    pub models: Vec<ModelSection>,
    /// Its own device code.
    #[serde(default, rename = "kernel", skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<KernelSection>,
}

/// `[plugin]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginSection {
    /// Folder name and crate name, `[a-z0-9-]`.
    pub name: String,
    /// The plugin's own version.
    pub version: String,
    /// One line.
    #[serde(default)]
    pub description: String,
    /// SPDX expression.
    #[serde(default)]
    pub license: String,
    /// People.
    #[serde(default)]
    pub authors: Vec<String>,
    /// URL.
    #[serde(default)]
    pub homepage: String,
}

/// `[api]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiSection {
    /// Must equal the core's ABI major.
    pub abi: u32,
    /// The SDK it was written against, `major.minor`.
    pub plugin_api: String,
    /// A hint: core versions known to work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<String>,
}

/// `[library]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibrarySection {
    /// File name beside the manifest.
    pub file: String,
    /// Target triple.
    pub target: String,
    /// Hex digest of the file.
    pub sha256: String,
}

/// `[[model]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// `model_type` of config.json.
    pub model_type: String,
    /// Class names, tried when `model_type` matches nothing.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// GGUF `general.architecture` values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gguf: Vec<String>,
    /// `text`, `lm_head`, `mtp`, `encoder`, `vision`.
    pub entry_points: Vec<String>,
    /// Ops it needs, with versions; filled by `pack`. Empty: not known before a trace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<String>,
    /// Checkpoint tensors that are meant to go unused (`*` matches anything).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
}

/// `[[kernel]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelSection {
    /// The namespaced op that it computes.
    pub op: String,
    /// `A` (device code) or `B` (host launcher).
    pub tier: String,
    /// Architectures: `90a`, `100a`.
    #[serde(default)]
    pub sm: Vec<String>,
    /// File beside the manifest.
    pub file: String,
    /// Hex digest of the file.
    pub sha256: String,
}

/// Entry points that a model may declare.
const ENTRIES: [&str; 6] = ["text", "lm_head", "mtp", "mtp_head", "encoder", "vision"];

impl Manifest {
    /// Reads a manifest and checks what the types cannot.
    ///
    /// # Errors
    /// One sentence with line and column, or with the key at fault.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let manifest: Self =
            toml::from_str(text).map_err(|e| ManifestError(e.to_string().trim().to_owned()))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The library's file name.
    #[must_use]
    pub fn library_file(&self) -> String {
        match &self.library {
            Some(library) => library.file.clone(),
            None => format!(
                "{}metrale_{}{}",
                std::env::consts::DLL_PREFIX,
                self.plugin.name.replace('-', "_"),
                std::env::consts::DLL_SUFFIX
            ),
        }
    }

    /// The part that is embedded in the library: everything but `[library]` and the op lists.
    #[must_use]
    pub fn author_part(&self) -> Self {
        let models = self.models.iter().map(|m| ModelSection { ops: Vec::new(), ..m.clone() }).collect();
        Self { library: None, models, ..self.clone() }
    }

    fn check(&self) -> Result<(), ManifestError> {
        let name = &self.plugin.name;
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
            return Err(ManifestError(format!(
                "plugin.name is `{name}`; expected 1 to 64 of a-z, 0-9 and -"
            )));
        }
        if self.models.is_empty() && self.kernels.is_empty() {
            return Err(ManifestError(
                "neither a [[model]] nor a [[kernel]]; a plugin needs at least one".into(),
            ));
        }
        let files = self.library.iter().map(|l| &l.file).chain(self.kernels.iter().map(|k| &k.file));
        for file in files {
            let path = std::path::Path::new(file);
            if path.is_absolute() || path.components().any(|c| !matches!(c, std::path::Component::Normal(_)))
            {
                return Err(ManifestError(format!("`{file}` is not a path inside the plugin's folder")));
            }
        }
        for model in &self.models {
            if let Some(entry) = model.entry_points.iter().find(|e| !ENTRIES.contains(&e.as_str())) {
                let known = ENTRIES.join(", ");
                return Err(ManifestError(format!(
                    "model {}: entry point `{entry}`; expected one of {known}",
                    model.model_type
                )));
            }
        }
        Ok(())
    }
}

/// A manifest that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError(pub String);

impl std::fmt::Display for ManifestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ManifestError {}
