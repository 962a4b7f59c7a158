//! Builds plugins and runs `metrale` on them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// Root of the source tree.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// One target directory for all that these tests build, so that the SDK is compiled once.
pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins")
}

/// What a program printed, both streams, and whether it succeeded.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) success: bool,
    pub(crate) text: String,
}

impl Ran {
    /// Requires every text.
    pub(crate) fn says(&self, texts: &[&str]) -> &Self {
        for text in texts {
            assert!(self.text.contains(text), "expected {text:?} in\n{}", self.text);
        }
        self
    }
}

fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|t| String::from_utf8_lossy(&t).into_owned()).concat();
    Ran { success: output.status.success(), text }
}

/// Runs `metrale` with caches of its own.
pub(crate) fn metrale(args: &[&str]) -> Ran {
    run(command(args).env("CARGO_TARGET_DIR", target()))
}

/// Runs `metrale` as a user does who has set nothing.
pub(crate) fn metrale_plain(args: &[&str]) -> Ran {
    run(command(args).env_remove("CARGO_TARGET_DIR"))
}

fn command(args: &[&str]) -> Command {
    static CACHE: OnceLock<TempDir> = OnceLock::new();
    let cache = CACHE.get_or_init(|| tempfile::tempdir().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_metrale"));
    command
        .args(args)
        .env("XDG_CACHE_HOME", cache.path())
        .env_remove("METRALE_PLUGIN_PATH")
        .env_remove("RUST_LOG");
    command
}

/// Runs cargo on a crate outside of the main workspace, with the versions of the main workspace.
pub(crate) fn cargo(folder: &Path, args: &[&str]) -> Ran {
    std::fs::copy(Path::new(ROOT).join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).arg("--offline").current_dir(folder).env("CARGO_TARGET_DIR", target());
    // Set for this test by the cargo that runs it.
    for (name, _) in
        std::env::vars().filter(|(n, _)| n.starts_with("CARGO_PKG_") || n == "CARGO_MANIFEST_DIR")
    {
        command.env_remove(name);
    }
    run(&mut command)
}

/// The folder of a built fixture, with its library beside the manifest.
pub(crate) fn fixture(name: &str) -> TempDir {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        for folder in ["tests/abi", "tests/abi/frozen"] {
            let built = cargo(&Path::new(ROOT).join(folder), &["build", "--release"]);
            assert!(built.success, "{}", built.text);
        }
    });
    package(&Path::new(ROOT).join("tests/abi").join(name), name)
}

/// A plugin's folder as it would be installed: manifest, library, test configurations.
pub(crate) fn package(source: &Path, name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = library_name(name);
    std::fs::copy(source.join("plugin.toml"), folder.path().join("plugin.toml")).unwrap();
    std::fs::copy(target().join("release").join(&file), folder.path().join(&file)).unwrap();
    let configs = source.join("configs");
    if configs.exists() {
        let copied = folder.path().join("configs");
        std::fs::create_dir(&copied).unwrap();
        for entry in std::fs::read_dir(configs).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, copied.join(path.file_name().unwrap())).unwrap();
        }
    }
    folder
}

/// `libmetrale_left.so`
pub(crate) fn library_name(plugin: &str) -> String {
    format!("libmetrale_{}.so", plugin.replace('-', "_"))
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A new scaffold called `name`.
pub(crate) fn scaffold(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let made = metrale(&["plugins", "new", name, "--sdk", ROOT, "--into", text(folder.path())]);
    assert!(made.success, "{}", made.text);
    let project = folder.path().join(name);
    (folder, project)
}
