//! Compares plugin.toml with the manifest that is embedded in the library.

use std::path::Path;

use metrale_plugin_api::manifest::Manifest;

use super::PluginError;

/// Requires that plugin.toml on disk and the embedded one say the same.
///
/// # Errors
/// Names every key that differs.
pub fn check_embedded(path: &Path, on_disk: &Manifest, embedded: &str) -> Result<(), PluginError> {
    let inside = Manifest::parse(embedded).map_err(|e| PluginError::Manifest {
        path: path.to_owned(),
        problem: format!("the manifest inside the library: {e}"),
    })?;
    let differences = differences(&on_disk.author_part(), &inside.author_part());
    if differences.is_empty() {
        return Ok(());
    }
    Err(PluginError::ManifestMismatch { path: path.to_owned(), differences })
}

fn differences(on_disk: &Manifest, inside: &Manifest) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let json = |m: &Manifest| serde_json::to_value(m).unwrap_or_default();
    compare("", &json(on_disk), &json(inside), &mut found);
    found
}

fn compare(
    key: &str,
    left: &serde_json::Value,
    right: &serde_json::Value,
    found: &mut Vec<(String, String, String)>,
) {
    use serde_json::Value as Json;
    let nested = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match (left, right) {
        (Json::Object(a), Json::Object(b)) => {
            let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for name in names {
                let of = |map: &serde_json::Map<String, Json>| map.get(name).cloned().unwrap_or_default();
                compare(&nested(name), &of(a), &of(b), found);
            }
        }
        (Json::Array(a), Json::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{key}[{index}]"), a, b, found);
            }
        }
        (a, b) if a != b => found.push((key.to_owned(), a.to_string(), b.to_string())),
        _ => {}
    }
}
