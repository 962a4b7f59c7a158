//! Opens plugin libraries in this process. The only place of the core that uses libloading and `abi_stable`.
//!
//! A library is opened once per file and never closed: threads, destructors and device code may still point into it.
// The leak is the point: see above.
#![allow(unsafe_code, clippy::mem_forget)]

use std::path::Path;

use abi_stable::library::{AbiHeaderRef, LibraryError};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use metrale_plugin_api::abi::{ENTRY_SYMBOL, PluginModule_Ref};

use super::PluginError;

/// Opens the library at `path`, which [`super::elf::read`] has passed.
///
/// Runs the library's static initialisers: whoever does not trust them probes in a child process first.
///
/// # Errors
/// The dynamic linker refuses it, there is no entry symbol, or the root module has another layout.
pub fn open(path: &Path) -> Result<PluginModule_Ref, PluginError> {
    let load = |problem: String| PluginError::Load { path: path.to_owned(), problem };
    // A path without a slash would be searched for in the system's folders.
    let absolute = path.canonicalize().map_err(|e| load(e.to_string()))?;
    // SAFETY: initialisers are the plugin's own code, which the user has chosen to run; the file is a shared object for
    // this machine, and the returned library is never closed.
    let library = unsafe { Library::open(Some(&absolute), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|e| load(one_line(&e.to_string())))?;
    // SAFETY: `AbiHeaderRef` is a transparent reference to the first bytes of what the symbol names. They are read as a
    // magic string, which `upgrade` checks before anything else.
    let header = unsafe { library.get::<AbiHeaderRef>(ENTRY_SYMBOL.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|_| PluginError::NoEntrySymbol { path: path.to_owned(), exports: Vec::new() });
    std::mem::forget(library);
    let header = header?;

    let layout = |problem: String| PluginError::Layout { path: path.to_owned(), problem };
    let header = header.upgrade().map_err(|e| layout(difference(&e)))?;
    if header.layout().is_none() {
        return Err(layout("the library does not describe its types".to_owned()));
    }
    header.check_layout::<PluginModule_Ref>().map_err(|e| {
        tracing::debug!(path = %path.display(), "layout check: {e}");
        layout(difference(&e))
    })
}

/// The first thing that differs, in one line: the full text is hundreds of lines of types.
fn difference(error: &LibraryError) -> String {
    match error {
        LibraryError::InvalidAbiHeader(_) => "the entry symbol is not a plugin header".to_owned(),
        LibraryError::InvalidCAbi { .. } => "its compiler passes arguments in another way".to_owned(),
        LibraryError::RootModule { .. } => "its constructor failed".to_owned(),
        other => {
            let text = other.to_string();
            let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
            let told: Vec<_> = lines.skip_while(|l| !l.starts_with("Error:")).take(3).collect();
            if told.is_empty() { one_line(&text) } else { one_line(&told.join(" ")) }
        }
    }
}

fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
