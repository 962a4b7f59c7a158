//! What each error says.

use metrale_plugin_api::abi::ABI_MAJOR;

use super::{Explanation, PluginError};

impl PluginError {
    /// All fields.
    #[must_use]
    pub fn explanation(&self) -> Explanation {
        match self {
            Self::Manifest { .. }
            | Self::NoPlugin { .. }
            | Self::Conflict { .. }
            | Self::Folder { .. }
            | Self::Override { .. }
            | Self::ManifestMismatch { .. }
            | Self::NoLibrary { .. }
            | Self::MissingOps { .. }
            | Self::UnknownName { .. }
            | Self::SameName { .. }
            | Self::SameFile { .. } => self.discovery(),
            Self::AbiMajor { .. }
            | Self::NotALibrary { .. }
            | Self::Load { .. }
            | Self::Panicked { .. }
            | Self::Layout { .. }
            | Self::Crashed { .. }
            | Self::CheckDied { .. }
            | Self::TimedOut { .. }
            | Self::NoEntrySymbol { .. }
            | Self::Probe { .. } => self.abi(),
            Self::Call { .. } => self.call(),
            Self::WorldWritable { .. }
            | Self::HashMismatch { .. }
            | Self::NotLocked { .. }
            | Self::Lock { .. } => self.trust(),
        }
    }

    fn discovery(&self) -> Explanation {
        use Explanation as E;
        match self {
            Self::Manifest { path, problem } => {
                E::new("P0101", format!("{}: {problem}", path.display())).help("correct the manifest")
            }
            Self::NoPlugin { wanted, searched, refused } => {
                let mut e = E::new("P0102", format!("no plugin can load {wanted}"));
                for folder in searched {
                    e = e.fact("searched", folder);
                }
                for plugin in refused {
                    e = e.fact("refused", plugin);
                }
                e.help(if refused.is_empty() {
                    "put a plugin for it into one of these folders, or name its folder with `--plugins DIR`"
                } else {
                    "see `metrale plugins list`; update metrale or the plugin"
                })
            }
            Self::Conflict { model_type, plugins } => {
                let mut e = E::new("P0103", format!("{} plugins describe `{model_type}`", plugins.len()));
                for (name, folder) in plugins {
                    e = e.fact("found", format!("{name}   {}", folder.display()));
                }
                let name = plugins.first().map_or("NAME", |(name, _)| name);
                e.help(format!("choose one with `--plugin {model_type}={name}`"))
            }
            Self::Folder { path, problem } => {
                E::new("P0104", format!("plugin folder {} cannot be read: {problem}", path.display()))
                    .help("correct `--plugins` or METRALE_PLUGIN_PATH")
            }
            Self::Override { model_type, name, problem } => {
                E::new("P0105", format!("`--plugin {model_type}={name}` cannot be followed: {problem}"))
                    .help("see `metrale plugins list` for names and model types")
            }
            Self::ManifestMismatch { path, differences } => {
                let mut e = E::new(
                    "P0106",
                    format!("{} says something else than the manifest inside the library", path.display()),
                );
                for (key, disk, library) in differences {
                    e = e.fact("on disk", format!("{key} = {disk}"));
                    e = e.fact("library", format!("{key} = {library}"));
                }
                e.help("build the library again after each change of plugin.toml")
            }
            Self::NoLibrary { path, is_crate, built } => {
                let file = path.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
                E::new("P0107", format!("{} is not there", path.display())).help(match built {
                    Some(built) => format!("`cp {} {}`", built.display(), path.display()),
                    None if *is_crate => {
                        format!("in that folder: `cargo build --release && cp target/release/{file} .`")
                    }
                    None => "put the library beside plugin.toml".to_owned(),
                })
            }
            Self::MissingOps { name, ops, .. } => E::new("P0108", format!("`{name}` {}", self.reason()))
                .help(format!("update metrale, or build {name} without {}", ops.join(", "))),
            Self::UnknownName { name, known } => {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                E::new("P0109", format!("there is no plugin `{name}`"))
                    .fact("found", known)
                    .help("name its folder with `--plugins DIR`")
            }
            Self::SameName { name, first } => {
                E::new("P0110", format!("a plugin named `{name}` is already in {}", first.display()))
                    .help("remove or rename one of them")
            }
            Self::SameFile { path, first } => {
                E::new("P0111", format!("{} is the library of plugin `{first}`", path.display()))
                    .help("remove the link, or put a library of its own there")
            }
            _ => E::default(),
        }
    }

    fn abi(&self) -> Explanation {
        use Explanation as E;
        match self {
            Self::AbiMajor { path, found } => E::new(
                "P0201",
                format!(
                    "{} was built for ABI {found}; this metrale reads ABI {ABI_MAJOR}",
                    path.display()
                ),
            )
            .help(if *found > ABI_MAJOR {
                format!("install a build for plugin-api {ABI_MAJOR}.x, or a metrale that reads ABI {found}")
            } else {
                format!("build the plugin with plugin-api {ABI_MAJOR}.x")
            }),
            Self::NotALibrary { path, what, expected, found } => {
                E::new("P0202", format!("{} is not a library for this machine: {what}", path.display()))
                    .fact("expected", expected)
                    .fact("found", found)
                    .help("build or download the plugin for this machine again")
            }
            Self::Load { path, problem } => {
                E::new("P0203", format!("{} cannot be loaded: {problem}", path.display()))
                    .help("a plugin links nothing but the system's C library; `metrale plugins inspect` lists what it needs")
            }
            Self::Panicked { plugin, doing, layer, message, place } => {
                let layer = layer.map_or_else(String::new, |l| format!(", layer {l}"));
                let place = if place.is_empty() { message.clone() } else { format!("{place}: {message}") };
                E::new("P0204", format!("plugin `{plugin}` panicked while it {doing}{layer}"))
                    .at(place)
                    .note("the server is unharmed; the model was not loaded")
            }
            Self::Layout { path, problem } => E::new(
                "P0205",
                format!("{} has another binary layout than plugin-api {ABI_MAJOR}: {problem}", path.display()),
            )
            .help(format!("build the plugin with an unmodified plugin-api {ABI_MAJOR}.x")),
            Self::Crashed { name, how } => {
                E::new("P0206", format!("plugin `{name}` crashed while it was probed ({how})"))
                    .note("it ran in a process of its own; nothing else is harmed")
                    .help("open the library in a debugger: it dies in its static initialisers or in `manifest`")
            }
            Self::CheckDied { name, check, how } => {
                E::new("P0210", format!("plugin `{name}` ended the process of check `{check}` ({how})"))
                    .note("it ran in a process of its own; nothing else is harmed")
                    .help("run the plugin's own tests in a debugger: `cargo test --test conformance`")
            }
            Self::TimedOut { name, limit_ms } => E::new(
                "P0207",
                format!("plugin `{name}` did not open within {} s", *limit_ms as f64 / 1000.0),
            )
            .help("opening a plugin must do no work: look at its static initialisers"),
            Self::NoEntrySymbol { path, exports } => {
                let exports = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
                E::new("P0208", format!("{} is a library but not a plugin", path.display()))
                    .fact("expected", metrale_plugin_api::abi::ENTRY_SYMBOL)
                    .fact("found", exports)
                    .help("write `metrale_plugin_api::export_plugin!(YourModel);` in src/lib.rs and build a cdylib")
            }
            Self::Probe { path, problem } => {
                E::new("P0209", format!("{} could not be probed: {problem}", path.display()))
                    .help("run `metrale plugins inspect` again; clear the cache folder if this stays")
            }
            _ => E::default(),
        }
    }

    fn call(&self) -> Explanation {
        let Self::Call { plugin, entry, layer, op, message, place, help } = self else {
            return Explanation::default();
        };
        let Some(entry) = entry else {
            return Explanation::new("P0303", format!("plugin `{plugin}` cannot open this model: {message}"))
                .at(place)
                .help(help);
        };
        let mut context = format!("entry {entry}");
        if let Some(layer) = layer {
            context.push_str(", layer ");
            context.push_str(&layer.to_string());
        }
        let (code, what) = match op {
            Some((number, name)) => {
                context.push_str(", op ");
                context.push_str(&number.to_string());
                context.push(' ');
                context.push_str(name);
                let known = metrale_graph::schema::find_op(name).is_some();
                (if known { "P0302" } else { "P0301" }, message.clone())
            }
            None => ("P0304", format!("plugin `{plugin}` cannot describe this model: {message}")),
        };
        let help = match code {
            "P0301" if help.is_empty() => "update metrale, or build the plugin without this op",
            _ => help,
        };
        let place = if place.is_empty() { plugin } else { place };
        Explanation::new(code, what).at(format!("{place}   ({context})")).help(help)
    }

    fn trust(&self) -> Explanation {
        use Explanation as E;
        match self {
            Self::WorldWritable { path, mode } => {
                E::new("P0701", format!("anyone may write to {} (mode {:o})", path.display(), mode & 0o7777))
                    .help(format!("`chmod o-w {}`", path.display()))
            }
            Self::HashMismatch { name, path, locked, found, by } => {
                E::new("P0702", format!("{} does not match {}", path.display(), by.display()))
                    .fact("locked", locked)
                    .fact("found", found)
                    .help(format!("`metrale plugins lock {name}` if you changed it on purpose"))
            }
            Self::NotLocked { name, lock } => {
                E::new("P0703", format!("plugin `{name}` is not in {}", lock.display()))
                    .help(format!("`metrale plugins lock {name}` if you trust it"))
            }
            Self::Lock { path, problem } => E::new("P0704", format!("{}: {problem}", path.display()))
                .help("write it anew with `metrale plugins lock`"),
            _ => E::default(),
        }
    }
}
