//! `metrale plugins new`: a plugin crate to start from, which builds, passes its tests and verifies as it is.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

/// Flags of `metrale plugins new`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct NewArgs {
    /// Name of the plugin, of its folder and of its model type: a-z, 0-9 and -.
    name: String,
    /// The plugin SDK: the folder `plugin-api` of metrale's source, or the folder that holds it.
    #[arg(long, value_name = "PATH")]
    sdk: PathBuf,
    /// Folder to write it into.
    #[arg(long, value_name = "DIR", default_value = ".")]
    into: PathBuf,
}

/// The files, with their paths in the crate. Double braces mark what is filled in.
const FILES: [(&str, &str); 9] = [
    ("Cargo.toml", include_str!("scaffold/Cargo.toml.in")),
    ("plugin.toml", include_str!("scaffold/plugin.toml")),
    ("README.md", include_str!("scaffold/README.md")),
    (".gitignore", include_str!("scaffold/gitignore")),
    ("src/lib.rs", include_str!("scaffold/lib.rs")),
    ("src/config.rs", include_str!("scaffold/config.rs")),
    ("tests/conformance.rs", include_str!("scaffold/conformance.rs")),
    ("configs/tiny.json", include_str!("scaffold/tiny.json")),
    ("configs/tiny.tensors.json", include_str!("scaffold/tiny.tensors.json")),
];

pub(super) fn execute(args: &NewArgs) -> anyhow::Result<ExitCode> {
    check_name(&args.name)?;
    let sdk = find_sdk(&args.sdk)?;
    let folder = args.into.join(&args.name);
    if folder.exists() {
        bail!("{} already exists\n   help: choose another name, or remove it", folder.display());
    }
    let fill = |text: &str| {
        text.replace("{{name}}", &args.name)
            .replace("{{crate}}", &args.name.replace('-', "_"))
            .replace("{{type}}", &args.name.replace('-', "_"))
            .replace("{{sdk}}", &sdk.display().to_string())
    };
    for (path, text) in FILES {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(&folder);
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        std::fs::write(&path, fill(text)).with_context(|| path.display().to_string())?;
    }
    let folder = folder.display();
    println!("{folder}: a small decoder as a plugin. Next:");
    println!("   cd {folder} && cargo build --release && cargo test");
    println!("   metrale plugins verify {folder}");
    Ok(ExitCode::SUCCESS)
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase());
    if starts_well && name.len() <= 64 && name.chars().all(allowed) && !name.ends_with('-') {
        return Ok(());
    }
    bail!(
        "`{name}` is no plugin name\n   expected  a letter, then a-z, 0-9 and -, at most 64\n   help: `metrale plugins new my-model …`"
    )
}

/// The absolute path of the SDK crate.
fn find_sdk(path: &Path) -> anyhow::Result<PathBuf> {
    let is_sdk = |folder: &Path| {
        std::fs::read_to_string(folder.join("Cargo.toml"))
            .is_ok_and(|t| t.contains("name = \"metrale-plugin-api\""))
    };
    let found = [path.to_owned(), path.join("plugin-api")].into_iter().find(|p| is_sdk(p));
    match found {
        Some(found) => found.canonicalize().with_context(|| found.display().to_string()),
        None => bail!(
            "{} does not hold the plugin SDK\n   expected  a folder `plugin-api` with the crate metrale-plugin-api\n   \
             help: `--sdk PATH` to a checkout of metrale",
            path.display()
        ),
    }
}
