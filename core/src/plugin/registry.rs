//! Which plugin describes a model.
//!
//! A registry is made from manifests alone. `model_type` decides, then the architecture class, then the GGUF
//! architecture; two ready plugins for one of them are an error, never a priority.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use metrale_plugin_api::manifest::ModelSection;

use super::candidate::Candidate;
use super::discover::{SearchFolder, SearchPath, built_library, discover, file_id, read_folder};
use super::probe::Prober;
use super::trust::Lock;
use super::{PluginError, Status, status};

/// The user's choices among plugins: model type to plugin name.
pub type Overrides = BTreeMap<String, String>;

/// All plugins that were found.
#[derive(Debug, Default)]
pub struct Registry {
    candidates: Vec<Candidate>,
    searched: Vec<PathBuf>,
    problems: Vec<PluginError>,
    warnings: Vec<String>,
    /// Whether libraries are also looked for where cargo puts them.
    built_libraries: bool,
}

impl Registry {
    /// Searches the folders given with `--plugins`, or the default ones, and `METRALE_PLUGIN_PATH`. Opens no library.
    ///
    /// Without a [`Prober`], plugins are opened in this process unprobed.
    #[must_use]
    pub fn load(folders: &[PathBuf]) -> Self {
        Self::search(&SearchPath::new(folders), None)
    }

    /// As [`Registry::load`], with what earlier probes found, and a probe before a plugin is first opened.
    #[must_use]
    pub fn load_probed(folders: &[PathBuf], prober: &Prober) -> Self {
        Self::search(&SearchPath::new(folders), Some(prober))
    }

    /// Searches exactly a path.
    #[must_use]
    pub fn search(path: &SearchPath, prober: Option<&Prober>) -> Self {
        let mut registry = Self::default();
        for folder in discover(path) {
            registry.add_folder(folder, prober);
        }
        registry.refuse_duplicates();
        registry
    }

    /// A registry of one plugin folder. If it is a crate without a library beside its manifest, the library that
    /// `cargo build --release` made is used: of a crate that the user names, that is the one that is meant.
    #[must_use]
    pub fn of_folder(folder: &Path, prober: Option<&Prober>) -> Self {
        let found = vec![read_folder(folder)];
        let root = folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut registry = Self { built_libraries: true, ..Self::default() };
        registry.add_folder(SearchFolder { path: root.to_owned(), found, problem: None }, prober);
        registry
    }

    fn add_folder(&mut self, folder: SearchFolder, prober: Option<&Prober>) {
        let lock = match Lock::read(&folder.path) {
            Ok(lock) => Ok(lock),
            Err(error) => {
                self.problems.push(error.clone());
                Err(error)
            }
        };
        if matches!(lock, Ok(None)) && !folder.found.is_empty() {
            self.warnings.push(format!(
                "{} has no plugins.lock: every plugin in it is trusted (`metrale plugins lock` pins them)",
                folder.path.display()
            ));
        }
        self.problems.extend(folder.problem);
        for found in folder.found {
            let library = found.manifest.as_ref().ok().map(|m| {
                let built = if self.built_libraries { built_library(&found.folder, m) } else { None };
                built.unwrap_or_else(|| found.folder.join(m.library_file()))
            });
            self.candidates.push(Candidate::check_found(found, library, &folder.path, &lock, prober));
        }
        self.searched.push(folder.path);
    }

    /// The first of two with one name, or with one library, stays.
    fn refuse_duplicates(&mut self) {
        let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut files = BTreeMap::new();
        for plugin in self.candidates.iter_mut().filter(|p| p.manifest.is_some()) {
            let library = plugin.library().map(Path::to_owned).unwrap_or_default();
            let id = file_id(&library).ok();
            if let Some(first) = names.get(&plugin.name) {
                let (name, first) = (plugin.name.clone(), first.clone());
                plugin.status = Status::of(PluginError::SameName { name, first });
            } else if let Some(first) = id.and_then(|id| files.get(&id)) {
                let first = String::clone(first);
                plugin.status = Status::of(PluginError::SameFile { path: library, first });
            } else {
                names.insert(plugin.name.clone(), plugin.folder.clone());
                files.extend(id.map(|id| (id, plugin.name.clone())));
            }
        }
    }

    /// In order of discovery.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Folders that were searched.
    #[must_use]
    pub fn searched(&self) -> &[PathBuf] {
        &self.searched
    }

    /// Search folders and locks that could not be read.
    #[must_use]
    pub fn problems(&self) -> &[PluginError] {
        &self.problems
    }

    /// What the user should know and need not act on.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The status table, as `metrale plugins list` prints it.
    #[must_use]
    pub fn table(&self) -> String {
        status::table(self)
    }

    /// A plugin by name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(&self, name: &str) -> Result<&Candidate, PluginError> {
        let known = || self.candidates.iter().map(|c| c.name.clone()).collect();
        self.candidates
            .iter()
            .find(|c| c.name == name)
            .ok_or_else(|| PluginError::UnknownName { name: name.to_owned(), known: known() })
    }

    /// The plugin for a model: by `model_type`, then by class, then by GGUF architecture. An empty `model_type` matches
    /// nothing. `overrides` choose among several, by whichever of the three they name.
    ///
    /// # Errors
    /// None is ready, several are, or an override cannot be followed.
    pub fn resolve(
        &self,
        model_type: &str,
        architectures: &[String],
        gguf_architecture: Option<&str>,
        overrides: &Overrides,
    ) -> Result<&Candidate, PluginError> {
        let keys = [(model_type, Key::ModelType)]
            .into_iter()
            .chain(architectures.iter().map(|a| (a.as_str(), Key::Architecture)))
            .chain(gguf_architecture.map(|a| (a, Key::Gguf)))
            .filter(|(value, _)| !value.is_empty());
        let keys: Vec<_> = keys.collect();
        for &(value, key) in &keys {
            if let Some(name) = overrides.get(value) {
                return self.overridden(value, key, name);
            }
            let mut ready = self.matching(value, key).filter(|c| c.status == Status::Ready);
            match (ready.next(), ready.next()) {
                (Some(only), None) => return Ok(only),
                (Some(first), Some(second)) => {
                    let all = [first, second].into_iter().chain(ready);
                    let plugins = all.map(|c| (c.name.clone(), c.folder.clone())).collect();
                    return Err(PluginError::Conflict { model_type: value.to_owned(), plugins });
                }
                _ => {}
            }
        }
        Err(self.nothing_for(&keys))
    }

    fn matching(&self, value: &str, key: Key) -> impl Iterator<Item = &Candidate> {
        self.candidates
            .iter()
            .filter(move |c| c.manifest().is_some_and(|m| m.models.iter().any(|m| key.matches(m, value))))
    }

    fn overridden(&self, value: &str, key: Key, name: &str) -> Result<&Candidate, PluginError> {
        let refuse = |problem: String| {
            Err(PluginError::Override { model_type: value.to_owned(), name: name.to_owned(), problem })
        };
        match self.candidates.iter().find(|c| c.name == name) {
            None => refuse(format!("there is no plugin `{name}`")),
            Some(plugin) if !self.matching(value, key).any(|c| std::ptr::eq(c, plugin)) => {
                refuse(format!("`{name}` does not declare {} `{value}`", key.name()))
            }
            Some(plugin) if plugin.status != Status::Ready => {
                refuse(format!("`{name}` is {}", plugin.status))
            }
            Some(plugin) => Ok(plugin),
        }
    }

    fn nothing_for(&self, keys: &[(&str, Key)]) -> PluginError {
        let wanted = keys.iter().map(|(value, key)| format!("{} `{value}`", key.name()));
        let wanted: Vec<_> = wanted.collect();
        let wanted = if wanted.is_empty() {
            "a model that names neither model_type nor architecture".to_owned()
        } else {
            wanted.join(" or ")
        };
        let summary = |folder: &PathBuf| {
            let here = self.candidates.iter().filter(|c| c.root == *folder).map(Candidate::status);
            format!("{} ({})", folder.display(), status::counts(here))
        };
        let mut searched: Vec<_> = self.searched.iter().map(summary).collect();
        searched.extend(self.problems.iter().map(PluginError::reason));
        if searched.is_empty() {
            searched
                .push("no folder: there is none beside the program or in the user's data folder".to_owned());
        }
        let describes = |c: &&Candidate| {
            keys.iter().any(|(value, key)| self.matching(value, *key).any(|m| std::ptr::eq(m, *c)))
        };
        let unreadable = |c: &&Candidate| c.manifest.is_none();
        let refused = self.candidates.iter().filter(|c| describes(c) || unreadable(c));
        let refused = refused.filter_map(|c| {
            let version = c.manifest().map_or("", |m| &m.plugin.version);
            let error = c.status.error()?;
            Some(format!("{} {version}: {}", c.name, error.reason()).replace("  ", " ").replace(" :", ":"))
        });
        PluginError::NoPlugin { wanted, searched, refused: refused.collect() }
    }
}

/// By what a model is matched.
#[derive(Clone, Copy, Debug)]
enum Key {
    ModelType,
    Architecture,
    Gguf,
}

impl Key {
    fn name(self) -> &'static str {
        match self {
            Self::ModelType => "model_type",
            Self::Architecture => "architecture",
            Self::Gguf => "GGUF architecture",
        }
    }

    fn matches(self, model: &ModelSection, value: &str) -> bool {
        match self {
            Self::ModelType => model.model_type == value,
            Self::Architecture => model.architectures.iter().any(|a| a == value),
            Self::Gguf => model.gguf.iter().any(|a| a == value),
        }
    }
}
