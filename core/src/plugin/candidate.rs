//! One plugin folder: what is known of it, and opening it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use metrale_graph::schema::find_op;
use metrale_plugin_api::abi::{ABI_MAJOR, PluginModule_Ref};
use metrale_plugin_api::manifest::{Manifest, ModelSection};

use super::discover::{Found, MANIFEST_FILE, built_library};
use super::embedded::check_embedded;
use super::probe::{ProbeReport, Prober, checked_link_facts};
use super::trust::{Lock, check_permissions, sha256_of};
use super::{PluginError, Status, library};

/// One plugin folder.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub(super) name: String,
    pub(super) folder: PathBuf,
    /// The search folder that it was found in.
    pub(super) root: PathBuf,
    pub(super) manifest: Option<Manifest>,
    /// The library; may be missing.
    library: Option<PathBuf>,
    lock: Option<Lock>,
    pub(super) status: Status,
    prober: Option<Prober>,
}

impl Candidate {
    /// Makes a candidate of a folder and checks what can be known without running it.
    pub(super) fn check_found(
        found: Found,
        library: Option<PathBuf>,
        root: &Path,
        lock: &Result<Option<Lock>, PluginError>,
        prober: Option<&Prober>,
    ) -> Self {
        let folder_name =
            found.folder.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let (manifest, broken) = match found.manifest {
            Ok(manifest) => (Some(manifest), None),
            Err(error) => (None, Some(error)),
        };
        let mut plugin = Self {
            name: manifest.as_ref().map_or(folder_name, |m| m.plugin.name.clone()),
            folder: found.folder,
            root: root.to_owned(),
            lock: lock.as_ref().ok().cloned().flatten(),
            status: Status::Ready,
            prober: prober.cloned(),
            library,
            manifest,
        };
        let checked = match (&plugin.manifest, broken, lock) {
            (_, Some(error), _) => Err(error),
            (_, _, Err(error)) => Err(error.clone()),
            (Some(manifest), None, Ok(_)) => plugin.check(manifest),
            (None, None, Ok(_)) => Ok(()),
        };
        if let Err(error) = checked {
            plugin.status = Status::of(error);
        }
        plugin
    }

    /// The plugin's name; the folder's, while the manifest cannot be read.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The search folder in which it was found; its lock is there.
    #[must_use]
    pub fn search_folder(&self) -> &Path {
        &self.root
    }

    /// What it says about itself, if that can be read.
    #[must_use]
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// The section of one model type.
    #[must_use]
    pub fn model(&self, model_type: &str) -> Option<&ModelSection> {
        self.manifest()?.models.iter().find(|m| m.model_type == model_type)
    }

    /// The library file, which may be missing.
    #[must_use]
    pub fn library(&self) -> Option<&Path> {
        self.library.as_deref()
    }

    fn library_path(&self, manifest: &Manifest) -> PathBuf {
        self.library.clone().unwrap_or_else(|| self.folder.join(manifest.library_file()))
    }

    /// Ready, refused or failed.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Whether a lock has its hash.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.lock.as_ref().is_some_and(|l| l.plugins.contains_key(&self.name))
    }

    /// Opens the plugin in this process, after every check; probes it in a child process first if the registry was given
    /// a [`Prober`].
    ///
    /// # Errors
    /// Why it is not ready, or what the checks found.
    pub fn open(&self) -> Result<PluginModule_Ref, PluginError> {
        let (manifest, path) = self.checked()?;
        if let Some(prober) = &self.prober {
            let report = prober.probe(&self.name, &path)?;
            self.check_report(manifest, &report)?;
        }
        let module = library::open(&path)?;
        check_embedded(&self.folder.join(MANIFEST_FILE), manifest, module.manifest()().as_str())?;
        Ok(module)
    }

    /// Opens the plugin in a child process only.
    ///
    /// # Errors
    /// As [`Candidate::open`].
    pub fn probe(&self, prober: &Prober) -> Result<ProbeReport, PluginError> {
        let (manifest, path) = self.checked()?;
        let report = prober.probe(&self.name, &path)?;
        self.check_report(manifest, &report)?;
        Ok(report)
    }

    /// Repeats the checks of the file, which may have changed since the registry was made.
    fn checked(&self) -> Result<(&Manifest, PathBuf), PluginError> {
        let manifest = match (&self.status, &self.manifest) {
            (Status::Ready, Some(manifest)) => manifest,
            (status, _) => {
                return Err(status.error().cloned().unwrap_or_else(|| PluginError::UnknownName {
                    name: self.name.clone(),
                    known: Vec::new(),
                }));
            }
        };
        let path = self.library_path(manifest);
        self.check_file(manifest, &path)?;
        Ok((manifest, path))
    }

    fn check_report(&self, manifest: &Manifest, report: &ProbeReport) -> Result<(), PluginError> {
        if report.abi_major != ABI_MAJOR {
            let path = self.library_path(manifest);
            return Err(PluginError::AbiMajor { path, found: report.abi_major });
        }
        check_embedded(&self.folder.join(MANIFEST_FILE), manifest, &report.manifest)
    }

    /// Everything that can be known without running the plugin.
    fn check(&self, manifest: &Manifest) -> Result<(), PluginError> {
        if manifest.api.abi != ABI_MAJOR {
            let path = self.folder.join(MANIFEST_FILE);
            return Err(PluginError::AbiMajor { path, found: manifest.api.abi });
        }
        check_permissions(&self.root, true)?;
        check_permissions(&self.folder, false)?;
        check_ops(manifest)?;
        let path = self.library_path(manifest);
        if !path.exists() {
            let is_crate = self.folder.join("Cargo.toml").exists();
            let built = built_library(&self.folder, manifest);
            return Err(PluginError::NoLibrary { path, is_crate, built });
        }
        self.check_file(manifest, &path)?;
        match self.prober.as_ref().and_then(|p| p.cached(&path)) {
            Some(result) => result.and_then(|report| self.check_report(manifest, &report)),
            None => Ok(()),
        }
    }

    fn check_file(&self, manifest: &Manifest, path: &Path) -> Result<(), PluginError> {
        check_permissions(path, false)?;
        checked_link_facts(path)?;
        let declared = manifest.library.as_ref();
        if self.lock.is_none() && declared.is_none() {
            return Ok(());
        }
        let sha256 = sha256_of(path)
            .map_err(|e| PluginError::Load { path: path.to_owned(), problem: e.to_string() })?;
        if let Some(declared) = declared.filter(|d| !d.sha256.eq_ignore_ascii_case(&sha256)) {
            return Err(PluginError::HashMismatch {
                name: self.name.clone(),
                path: path.to_owned(),
                locked: declared.sha256.clone(),
                found: sha256,
                by: self.folder.join(MANIFEST_FILE),
            });
        }
        match &self.lock {
            Some(lock) => lock.check(&self.name, path, &sha256, &self.root),
            None => Ok(()),
        }
    }
}

fn check_ops(manifest: &Manifest) -> Result<(), PluginError> {
    let own = |op: &str| manifest.kernels.iter().any(|k| k.op == op);
    let needed: BTreeSet<_> = manifest.models.iter().flat_map(|m| &m.ops).collect();
    let missing: Vec<_> =
        needed.into_iter().filter(|op| find_op(op).is_none() && !own(op)).cloned().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let name = manifest.plugin.name.clone();
    Err(PluginError::MissingOps { name, ops: missing, core: manifest.api.core.clone() })
}
